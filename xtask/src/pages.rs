//! The reference pages in `docs/`: each row of a table has its line, and the flags' page is made of their table.

use std::collections::BTreeMap;
use std::fmt::Write;

use puna_flags::{Flag, Group, ToolSet};

use crate::files::TextFile;

/// Names of the rows of one table, and the page that describes them.
pub struct Page {
    /// Path of the page.
    pub path: &'static str,
    /// What the rows are, for the message.
    pub what: &'static str,
    /// The rows.
    pub rows: Vec<String>,
}

/// Every page with one line for each row of a table.
pub fn pages(files: &[TextFile]) -> Vec<Page> {
    let names = |names: &mut dyn Iterator<Item = &'static str>| names.map(str::to_owned).collect();
    vec![
        Page {
            path: "docs/architectures.md",
            what: "architecture",
            rows: names(&mut puna_models::ARCHITECTURES.iter().map(|row| row.name)),
        },
        Page {
            path: "docs/formats.md",
            what: "number format",
            rows: names(&mut puna_quant::FORMATS.iter().map(|row| row.name)),
        },
        Page {
            path: "docs/operations.md",
            what: "operation",
            rows: names(&mut puna_graph::Op::NAMES.iter().copied()),
        },
        Page {
            path: "docs/samplers.md",
            what: "sampler",
            rows: names(&mut puna_sampling::SAMPLERS.iter().map(|row| row.name)),
        },
        Page {
            path: "docs/templates.md",
            what: "built-in template",
            rows: names(&mut puna_chat::builtin::names()),
        },
        Page {
            path: "docs/dialects.md",
            what: "dialect",
            rows: names(&mut puna_chat::dialects::DIALECTS.iter().map(|row| row.name)),
        },
        Page {
            path: "docs/speculation.md",
            what: "kind of speculation",
            rows: names(&mut puna_flags::SPECULATION_TYPES.iter().copied()),
        },
        Page {
            path: "docs/tools.md",
            what: "tool",
            rows: files
                .iter()
                .find(|file| file.path == TOOLS_TABLE)
                .map_or_else(Vec::new, |file| tool_names(&file.text)),
        },
    ]
}

/// The source of the table of tools. The program is no library, so its text is read.
const TOOLS_TABLE: &str = "tools/llama/src/tools.rs";

/// Names in the table of tools.
fn tool_names(source: &str) -> Vec<String> {
    let table = source.split("static TOOLS").nth(1).and_then(|rest| rest.split("\n];").next()).unwrap_or("");
    let values = table.lines().filter_map(|line| line.trim().strip_prefix("name: \""));
    values.filter_map(|value| value.split('"').next()).map(str::to_owned).collect()
}

/// The tools as members of the sets in the flag table.
const TOOLS: &[(&str, ToolSet)] = &[
    ("cli", ToolSet::CLI),
    ("completion", ToolSet::COMPLETION),
    ("simple", ToolSet::SIMPLE),
    ("run", ToolSet::RUN),
    ("diffusion", ToolSet::DIFFUSION),
    ("logits", ToolSet::LOGITS),
    ("tokenize", ToolSet::TOKENIZE),
    ("template", ToolSet::RENDER),
    ("grammar", ToolSet::GRAMMAR),
    ("info", ToolSet::INFO),
    ("devices", ToolSet::DEVICES),
    ("pull", ToolSet::PULL),
    ("list", ToolSet::LIST),
    ("bench", ToolSet::BENCH),
    ("serve", ToolSet::SERVE),
    ("batched-bench", ToolSet::BATCHED_BENCH),
    ("perplexity", ToolSet::PERPLEXITY),
    ("quantize", ToolSet::QUANTIZE),
    ("gguf-split", ToolSet::GGUF_SPLIT),
    ("imatrix", ToolSet::IMATRIX),
    ("export-lora", ToolSet::EXPORT_LORA),
    ("cvector-generator", ToolSet::CVECTOR),
    ("convert-legacy", ToolSet::CONVERT_LEGACY),
    ("gguf-hash", ToolSet::GGUF_HASH),
    ("gguf", ToolSet::GGUF),
    ("convert", ToolSet::CONVERT),
    ("convert-lora", ToolSet::CONVERT_LORA),
    ("embedding", ToolSet::EMBEDDING),
    ("rerank", ToolSet::RERANK),
];

/// Rows without a line of the form `` | `name` | … `` on their page, and lines without a row.
pub fn check_rows(pages: &[Page], files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        let Some(file) = files.iter().find(|file| file.path == page.path) else {
            faults.push(format!("{} is missing", page.path));
            continue;
        };
        let mut described: BTreeMap<&str, usize> = BTreeMap::new();
        for name in file.text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()) {
            *described.entry(name).or_default() += 1;
        }
        for row in &page.rows {
            if described.remove(row.as_str()) != Some(1) {
                faults.push(format!("{}: the {} {row} needs one line", page.path, page.what));
            }
        }
        for name in described.keys() {
            faults.push(format!("{}: there is no {} {name}", page.path, page.what));
        }
    }
    faults
}

/// Path of the page that is made of the flag tables.
pub const FLAGS_PAGE: &str = "docs/flags.md";

/// The page of all flags.
pub fn flags_page() -> String {
    let mut page = String::from(
        "# Flags\n\nMade from the flag tables by `cargo run -p xtask`; do not edit. `_` in a long flag counts as `-`. \
         An environment\nvariable counts where its flag is absent. Flags under \"known, but refused\" change the \
         result in ways that are not built\nyet: using one is an error, so that no script gets something else \
         silently.\n",
    );
    flag_tables(&mut page, puna_flags::FLAGS, true);
    page.push_str("\n# Flags of `bench`\n\nEach setting takes a list, and a test is one combination.\n");
    flag_tables(&mut page, puna_flags::bench::FLAGS, false);
    page
}

fn flag_tables<C>(page: &mut String, groups: &[Group<C>], tools: bool) {
    let mut refused = Vec::new();
    for group in groups {
        let known = |flag: &&Flag<C>| !matches!(flag.kind, puna_flags::Kind::NotYet { .. });
        refused.extend(group.flags.iter().filter(|flag| !known(flag)));
        let rows: Vec<&Flag<C>> = group.flags.iter().filter(known).collect();
        if rows.is_empty() {
            continue;
        }
        let heading = if tools { ("| tools ", "| --- ") } else { ("", "") };
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\n## {}\n\n| flag | meaning | default | variable {}|\n| --- | --- | --- | --- {}|\n",
            group.heading, heading.0, heading.1
        );
        for flag in rows {
            let _ = writeln!(page, "{}", flag_line(flag, tools));
        }
    }
    if !refused.is_empty() {
        let spellings: Vec<String> = refused.iter().map(|flag| spellings(flag)).collect();
        let _ = write!(page, "\n## Known, but refused\n\n{}.\n", spellings.join("; "));
    }
}

fn flag_line<C>(flag: &Flag<C>, tools: bool) -> String {
    let mut name = spellings(flag);
    if let puna_flags::Kind::Value { placeholder, .. } = flag.kind {
        let _ = write!(name, " {}", placeholder.replace('|', "\\|"));
    }
    let mut meaning = flag.help.replace('|', "\\|");
    if let Some(reason) = flag.inert {
        let _ = write!(meaning, " (accepted without effect: {reason})");
    }
    if !flag.needs.is_empty() {
        let needs: Vec<String> = flag.needs.iter().map(|name| format!("`--{name}`")).collect();
        let _ = write!(meaning, " (with {})", needs.join(" or "));
    }
    let default = flag.default.unwrap_or("");
    let variable = flag.env.map(|name| format!("`{name}`")).unwrap_or_default();
    let mut line = format!("| {name} | {meaning} | {default} | {variable} |");
    if tools {
        let all = flag.tools == ToolSet::ALL;
        let named = TOOLS.iter().filter(|(_, tool)| flag.tools.has(*tool)).map(|(name, _)| *name);
        let list = if all { "all".to_owned() } else { named.collect::<Vec<_>>().join(" ") };
        let _ = write!(line, " {list} |");
    }
    line
}

fn spellings<C>(flag: &Flag<C>) -> String {
    let all = flag.spellings.split_whitespace().chain(flag.negative.split_whitespace());
    all.map(|spelling| format!("`{spelling}`")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::all;

    #[test]
    fn every_row_has_its_line() {
        let files = all();
        crate::assert_clean(check_rows(&pages(&files), &files));
    }

    #[test]
    fn tools_of_flags_exist() {
        let files = all();
        let pages = pages(&files);
        let known = &pages.iter().find(|page| page.what == "tool").expect("there is a page of tools").rows;
        for (index, (name, set)) in TOOLS.iter().enumerate() {
            assert!(known.iter().any(|tool| tool == name), "{TOOLS_TABLE} has no {name}: {known:?}");
            // Two tools with one bit would get one another's flags.
            let same = TOOLS[..index].iter().find(|(_, other)| other.has(*set));
            assert!(same.is_none(), "{name} shares its constant in ToolSet with {same:?}");
        }
    }

    #[test]
    fn the_readme_names_every_tool() {
        let files = all();
        let readme = files.iter().find(|file| file.path == "README.md").expect("there is a README");
        let pages = pages(&files);
        for tool in &pages.iter().find(|page| page.what == "tool").expect("there is a page of tools").rows {
            assert!(
                readme.text.contains(&format!("`llama {tool}`")),
                "README.md: the tool {tool} has no line"
            );
        }
    }

    #[test]
    fn names_of_tools_are_read() {
        let source =
            "pub static TOOLS: &[Tool] = &[\n    Tool {\n        name: \"cli\",\n    },\n];\nname: \"no\"";
        assert_eq!(tool_names(source), ["cli"]);
    }

    #[test]
    fn the_page_of_flags_is_up_to_date() {
        let files = all();
        let found = files.iter().find(|file| file.path == FLAGS_PAGE).map(|file| file.text.as_str());
        assert!(found == Some(flags_page().as_str()), "{FLAGS_PAGE} is old: run `cargo run -p xtask`");
    }

    #[test]
    fn every_flag_is_on_the_page() {
        let page = flags_page();
        let flags = puna_flags::FLAGS.iter().flat_map(|group| group.flags);
        let spellings = flags.flat_map(|flag| flag.spellings.split(' '));
        for spelling in spellings {
            assert!(page.contains(&format!("`{spelling}`")), "{spelling}");
        }
    }

    #[test]
    fn missing_and_stray_lines_are_caught() {
        let page = |rows: &[&str]| Page {
            path: "docs/a.md",
            what: "row",
            rows: rows.iter().map(|row| row.to_string()).collect(),
        };
        let file = [TextFile::sample("docs/a.md", "| `one` | 1 |\n| `two` | 2 |\n")];
        assert_eq!(check_rows(&[page(&["one", "two"])], &file), [""; 0]);
        assert_eq!(check_rows(&[page(&["one"])], &file), ["docs/a.md: there is no row two"]);
        assert_eq!(check_rows(&[page(&["one", "two", "three"])], &file).len(), 1);
        assert_eq!(check_rows(&[page(&["one"])], &[]).len(), 1);
        let twice = [TextFile::sample("docs/a.md", "| `one` | 1 |\n| `one` | 2 |\n")];
        assert_eq!(check_rows(&[page(&["one"])], &twice).len(), 1);
    }
}
