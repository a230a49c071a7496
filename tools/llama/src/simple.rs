//! `llama simple`: continue a text greedily.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::session::{End, Session};
use crate::{pages, prompt};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};

/// Flags of `simple`.
pub const SPEC: Spec<Config> = Spec {
    name: "simple",
    tool: ToolSet::SIMPLE,
    about: "Continue a text greedily; 32 tokens if -n is absent",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "PROMPT",
        help: "The prompt",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

const PROMPT: &str = "Hello my name is";

/// `llama simple`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let words = config.positional.join(" ");
    let text = match prompt::given(&config)? {
        Some(text) => text,
        None if words.is_empty() => PROMPT.to_string(),
        None => words,
    };
    config.prompt.special = true;
    let mut session = Session::start(invocation, &SPEC, &config, &console, 32)?;
    session.be_greedy();
    let tokens = session.tokenizer.encode(&text, true, true);
    session.check(&tokens)?;
    pages::print(&session.tokenizer.decode(&tokens, true))?;
    let start = std::time::Instant::now();
    let answer = session.generate(session.request(tokens), &mut |part| pages::print(part.as_bytes()))?;
    pages::print(b"\n")?;
    let (count, seconds) = (answer.timings.generated_tokens, start.elapsed().as_secs_f64());
    console.info(&format!(
        "decoded {count} tokens in {seconds:.2} s, speed: {:.2} t/s",
        count as f64 / seconds.max(1e-9)
    ));
    match answer.end {
        End::Interrupted => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}
