//! GBNF: what it says, what is refused, and that masks say the same as the text.

mod common;

use common::*;
use puna_grammar::{Grammar, GrammarError, Token, Tokens, allows};

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn everything_of_the_syntax() {
    let rows: &[(&str, &[&str], &[&str])] = &[
        (r#"root ::= "abc""#, &["abc"], &["", "ab", "abcd", "abd"]),
        (r#"root ::= "a" | "b" | """#, &["a", "b", ""], &["ab", "c"]),
        ("root ::= \"a\" |\n  \"b\"\n", &["a", "b"], &["c"]),
        ("# about\nroot ::= # more\n\n x \"!\" # end\nx ::= [a-c]+\n", &["a!", "abc!"], &["!", "d!"]),
        (r#"root ::= [^a-c]"#, &["d", "é", "🦙", "\n"], &["a", "", "dd"]),
        (r#"root ::= [a\-c]+ [x-]"#, &["a-cx", "--"], &["bx"]),
        (r#"root ::= [\]\[\\"]{2}"#, &["][", "\\\""], &["]"]),
        (r#"root ::= ."#, &["a", "\n", "漢"], &["", "ab"]),
        (r#"root ::= "\x41\u00e9\U0001F999\t\r\n\\\"\[\]""#, &["Aé🦙\t\r\n\\\"[]"], &["A"]),
        (
            r#"root ::= "a"{2} "b"{1,} "c"{0,2} "d"{ 1 , 2 }"#,
            &["aabd", "aabbccdd"],
            &["abd", "aad", "aabcccd"],
        ),
        (r#"root ::= "ab"* "c"? "d"+"#, &["d", "ababcdd"], &["abab", "abcbd"]),
        (r#"root ::= ("a" | "b" "c")* ("x" (("y")))"#, &["xy", "abcaxy"], &["bxy"]),
        ("root ::= (\n \"a\" # one\n | \"b\"\n)+\n", &["abba"], &[""]),
        ("root ::= a-1 b_2\na-1 ::= \"x\"\nb_2 ::= \"y\"", &["xy"], &["x"]),
        ("root ::= x\nx ::= \"a\"\nx ::= \"b\"", &["b"], &["a"]),
        ("root ::= \"a\" root \"b\" | \"\"", &["", "ab", "aaabbb"], &["aab", "abb"]),
        ("root ::= \"a\" root | \"a\"", &["a", "aaaa"], &[""]),
        ("root ::= [^\\x00]* (\"yes\" | \"no\")", &["yes", "no no", "yesyes"], &["yesn"]),
        ("root ::= x{0}  \"a\"\nx ::= \"b\"", &["a"], &["ba"]),
        (r#"root ::= [] | "a""#, &["a"], &["b"]),
        (r#"root ::= [\U00010000-\U0010FFFF]"#, &["🦙"], &["é"]),
    ];
    for (text, right, wrong) in rows {
        accepts(&grammar(text), right, wrong);
    }
}

#[test]
fn json_is_json() {
    let right = [
        "{}",
        "{\"a\":1}",
        "{ \"a\": [1, 2.5e-3, -0], \"b\": {\"c\": \"d\\u00e9\\n é\"}, \"x\":true}",
        "{\"a\":[[],[[]]]}\n",
    ];
    let wrong =
        ["", "[]", "{\"a\":}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\n\"}", "{\"a\":tru}", "{\"a\":1}}"];
    accepts(&grammar(JSON), &right, &wrong);
}

#[test]
fn mistakes_have_a_place() {
    for (text, line, column, says) in [
        ("root := x", 1, 6, "expected ::="),
        ("root ::= x", 1, 10, "\"x\" is used but not defined"),
        ("root ::= \"a", 1, 10, "no closing quote"),
        ("root ::= \"a\"\nx ::= [a-", 2, 7, "no closing bracket"),
        ("root ::= (\"a\"", 1, 14, "expected ) or a part of the group, found the end"),
        ("root ::= \"a\")", 1, 13, "found ')'"),
        ("root ::= *", 1, 10, "nothing before this"),
        ("root ::= \"a\"{x}", 1, 14, "expected a number"),
        ("root ::= \"a\"{3,1}", 1, 13, "below the lower one"),
        ("root ::= \"a\"{99999999999}", 1, 14, "too large"),
        ("root ::= \"é\\q\"", 1, 12, "unknown escape"),
        ("root ::= \"\\uD800\"", 1, 11, "no character"),
        ("root ::= \"\\u12\"", 1, 13, "4 hexadecimal digits"),
        ("root ::= [z-a]", 1, 13, "is empty"),
        ("root ::= <[999]>", 1, 10, "no token 999"),
        ("root ::= <nothing>", 1, 10, "not a single token"),
        ("root ::= \"a\"\n| \"b\"", 2, 1, "expected the name of a rule"),
        ("ro~ot ::= \"a\"", 1, 3, "expected ::="),
    ] {
        match Grammar::new(text, &Tokens::bytes()) {
            Err(GrammarError::Syntax { line: at, column: place, problem }) => {
                assert_eq!((at, place), (line, column), "{text}: {problem}");
                assert!(problem.contains(says), "{text}: {problem}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(Grammar::new("x ::= \"a\"", &Tokens::bytes()).unwrap_err(), GrammarError::NoRoot);
    assert_eq!(Grammar::new("", &Tokens::bytes()).unwrap_err(), GrammarError::NoRoot);
}

#[test]
fn left_recursion_is_refused() {
    for (text, cycle) in [
        ("root ::= root \"a\" | \"b\"", "root begins with root"),
        ("root ::= x\nx ::= y \"a\"\ny ::= x | \"b\"", "x begins with y begins with x"),
        ("root ::= e root \"a\" | \"b\"\ne ::= \"\"", "root begins with root"),
        ("root ::= (\"a\"? root)* \"b\"", "root begins with root"),
    ] {
        match Grammar::new(text, &Tokens::bytes()) {
            Err(GrammarError::LeftRecursion { cycle: found }) => {
                assert!(found == cycle || found == "y begins with x begins with y", "{text}: {found}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    // Recursion elsewhere is what grammars are for.
    accepts(&grammar("root ::= \"(\" root? \")\" root?"), &["()", "(())()", "()()"], &["", "(", ")("]);
}

#[test]
fn the_place_and_what_was_expected() {
    let found = mismatch(&grammar(JSON), "{\"a\": nul}").unwrap();
    assert_eq!((found.offset, found.expected_text().as_str()), (9, "l"));
    let found = mismatch(&grammar(JSON), "{\"a\": 1").unwrap();
    assert_eq!(found.offset, 7);
    assert_eq!(found.expected_text(), "\\n, blank, ,, ., 0 to 9, E, e, }");
    let found = mismatch(&grammar("root ::= \"a\"+"), "aab").unwrap();
    assert_eq!((found.offset, found.expected_text().as_str()), (2, "a, the end of the text"));
    let found = mismatch(&grammar("root ::= \"x\" [^a]"), "xa").unwrap();
    assert_eq!(found.expected_text(), "\\x00 to `, b to \\x7F, other characters");
}

/// Tokens of single bytes, some longer ones, a control token and one that ends.
fn tokens() -> std::sync::Arc<Tokens> {
    let plain = |bytes: &[u8]| Token { bytes: bytes.to_vec(), control: false, end: false };
    let mut all: Vec<Token> = (0..=255).map(|byte| plain(&[byte])).collect();
    all.extend(
        ["ab", "abc", "bc", "\"}", "\":", "aaaa", "<tool>", "é", "\",\"", "}}"]
            .map(|text| plain(text.as_bytes())),
    );
    all.push(Token { bytes: b"<|start|>".to_vec(), control: true, end: false });
    all.push(Token { bytes: b"<|end|>".to_vec(), control: true, end: true });
    all.push(plain(b""));
    Tokens::new(all)
}

/// The mask says exactly what accepting each token on a copy says.
#[track_caller]
fn mask_is_exact(grammar: &Grammar, text: &str) {
    let tokens = grammar.tokens().clone();
    let mut constraint = grammar.constraint().unwrap();
    for at in 0..=text.len() {
        let mask = constraint.mask().unwrap().unwrap().to_vec();
        for token in 0..tokens.len() as u32 {
            // A fresh copy without the mask, which would be asked first.
            let mut copy = grammar.constraint().unwrap();
            for byte in &text.as_bytes()[..at] {
                copy.accept(u32::from(*byte)).unwrap();
            }
            let accepted = copy.accept(token).is_ok();
            assert_eq!(allows(&mask, token), accepted, "token {token} after {:?}", &text.as_bytes()[..at]);
        }
        if let Some(byte) = text.as_bytes().get(at) {
            constraint.accept(u32::from(*byte)).unwrap_or_else(|error| panic!("{error} at {at} of {text}"));
        }
    }
}

#[test]
fn masks_say_what_accepting_says() {
    let tokens = tokens();
    let compile = |text: &str| Grammar::new(text, &tokens).unwrap();
    mask_is_exact(&compile(JSON), "{\"ab\":{\"é\":[\"aaaa\",{}]}}");
    mask_is_exact(&compile("root ::= \"a\" root \"b\" | \"c\" root? | x\nx ::= [a-c]{0,3} \"é\"?"), "aacbc");
    mask_is_exact(&compile("root ::= (\"a\"? \"b\"? \"c\"?)* | [^x]* \"}\""), "abcab}}");
    mask_is_exact(&compile("root ::= <tool> [a-c]* !<[97]> <[99]> | \"abc\""), "abc");
    mask_is_exact(&compile("root ::= .*"), "a<é");
}

#[test]
fn tokens_by_name_and_number() {
    let tokens = tokens();
    let grammar = Grammar::new("root ::= <|start|> \"a\" !<[97]> <tool>", &tokens).unwrap();
    let (start, tool, end) = (266, 262, 267);
    let mut constraint = grammar.constraint().unwrap();
    let allowed = |constraint: &mut puna_grammar::Constraint| {
        let mask = constraint.mask().unwrap().unwrap();
        (0..tokens.len() as u32).filter(|token| allows(mask, *token)).collect::<Vec<_>>()
    };
    assert_eq!(allowed(&mut constraint), [start]);
    constraint.accept(start).unwrap();
    assert_eq!(allowed(&mut constraint), [97]);
    constraint.accept(97).unwrap();
    // Any token but 97, also a control token, but none that ends.
    let any = allowed(&mut constraint);
    assert!(!any.contains(&97) && !any.contains(&end) && any.contains(&start) && any.contains(&98));
    assert_eq!(constraint.accept(97), Err(GrammarError::NotAllowed { token: 97 }));
    constraint.accept(98).unwrap();
    assert_eq!(allowed(&mut constraint), [tool]);
    constraint.accept(tool).unwrap();
    assert!(constraint.is_complete().unwrap());
    assert_eq!(allowed(&mut constraint), [end]);
    constraint.accept(end).unwrap();
    assert!(allowed(&mut constraint).is_empty());
    // Texts match control tokens by their names, as tool calls need it.
    let grammar = Grammar::new("root ::= \"<|start|>\" \"a\"", &tokens).unwrap();
    let mut constraint = grammar.constraint().unwrap();
    assert_eq!(allowed(&mut constraint), [u32::from(b'<'), start]);
}

#[test]
fn tokens_can_be_taken_back() {
    let grammar = Grammar::new(JSON, &tokens()).unwrap();
    let mut constraint = grammar.constraint().unwrap();
    let text = b"{\"a\":[1]}";
    let mut masks = Vec::new();
    for byte in text {
        masks.push(constraint.mask().unwrap().unwrap().to_vec());
        constraint.accept(u32::from(*byte)).unwrap();
    }
    assert!(constraint.is_complete().unwrap());
    let copy = constraint.clone();
    for (back, expected) in (1..=text.len()).zip(masks.iter().rev()) {
        let mut copy = copy.clone();
        copy.rollback(back).unwrap();
        assert_eq!(copy.mask().unwrap().unwrap(), expected);
    }
    assert!(constraint.rollback(text.len() + 1).is_err());
    constraint.reset().unwrap();
    assert_eq!(constraint.mask().unwrap().unwrap(), masks[0]);
}

#[test]
fn long_texts_do_not_grow() {
    // So deep that what is remembered is thrown away several times.
    let mut constraint = grammar(JSON).constraint().unwrap();
    let accept = |constraint: &mut puna_grammar::Constraint, text: &str| {
        for byte in text.bytes() {
            constraint.mask().unwrap();
            constraint.accept(u32::from(byte)).unwrap_or_else(|error| panic!("{error} in {text}"));
        }
    };
    accept(&mut constraint, "{\"a\":");
    for _ in 0..30_000 {
        accept(&mut constraint, "[");
    }
    for _ in 0..29_999 {
        accept(&mut constraint, "],1");
    }
    accept(&mut constraint, "]}");
    assert!(constraint.is_complete().unwrap());
}
