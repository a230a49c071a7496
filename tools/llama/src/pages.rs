//! Overview, help, version, completion scripts and manual pages.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::tools::{self, TOOLS};
use puna_flags::{Command, Shell};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

const ABOUT: &str = "Run language models (GGUF) on your own machine";

/// Writes to the standard output.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// The list of tools; `all` with their other names.
pub fn overview(all: bool) -> Result<(), Failure> {
    let mut text = format!("{ABOUT}\n\nUsage: llama COMMAND [FLAGS]\n\nCommands:\n");
    for tool in TOOLS {
        let others = if all && !tool.aliases.is_empty() {
            format!(" (also: {})", tool.aliases.join(", "))
        } else {
            String::new()
        };
        text.push_str(&format!("  {:<12} {}{others}\n", tool.name, tool.summary));
    }
    text.push_str("\n'llama cli' without a model fetches a small one and chats with it.\n");
    text.push_str("'llama COMMAND --help' lists the flags of a command.\n");
    print(text.as_bytes())
}

/// `llama help [TOOL]`.
pub fn help(invocation: &Invocation) -> Result<(), Failure> {
    match text_arguments(invocation)?.as_slice() {
        [] => overview(false),
        [name] if ["all", "-h", "--help"].contains(&name.as_str()) => overview(true),
        [name] => {
            let tool = tools::find(name).ok_or_else(|| tools::unknown(name, "llama"))?;
            (tool.run)(&Invocation::new(format!("llama {}", tool.name), vec![OsString::from("--help")]))
        }
        _ => Err(invocation.usage("expected one command")),
    }
}

/// `llama version`.
pub fn version_tool(invocation: &Invocation) -> Result<(), Failure> {
    match text_arguments(invocation)?.as_slice() {
        [] => version(),
        [flag] if flag == "--help" || flag == "-h" => plain_help(invocation),
        [other, ..] => Err(invocation.usage(format!("unexpected argument {other:?}"))),
    }
}

/// What `--version` prints.
pub fn version() -> Result<(), Failure> {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    print(format!("llama (Puna) {} for {target}\n", env!("CARGO_PKG_VERSION")).as_bytes())
}

/// `llama completions SHELL`.
pub fn completions(invocation: &Invocation) -> Result<(), Failure> {
    let arguments = text_arguments(invocation)?;
    match arguments.as_slice() {
        [flag] if flag == "--help" || flag == "-h" => plain_help(invocation),
        [name] => {
            let shell = puna_flags::shell(name)
                .map_err(|error| invocation.usage(format!("{name:?} is no known shell: {error}")))?;
            print(&puna_flags::completions(root(), shell))
        }
        _ => Err(invocation.usage("expected a shell: bash, elvish, fish, powershell or zsh")),
    }
}

/// The bash script for one tool: of the whole program, or of the link through which it was started.
pub fn bash(program: &str, command: Command) -> Result<(), Failure> {
    let command = if program.starts_with("llama-") { command } else { root() };
    print(&puna_flags::completions(command, Shell::Bash))
}

/// `llama man DIR`.
pub fn man(invocation: &Invocation) -> Result<(), Failure> {
    let arguments = text_arguments(invocation)?;
    let folder = match arguments.as_slice() {
        [flag] if flag == "--help" || flag == "-h" => return plain_help(invocation),
        // A folder that is called so is `./-x`.
        [flag] if flag.starts_with('-') || flag.is_empty() => {
            return Err(invocation.usage(format!("expected a folder, got {flag:?}")));
        }
        [folder] => PathBuf::from(folder),
        _ => return Err(invocation.usage("expected a folder")),
    };
    let failed =
        |path: &PathBuf, error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    let tools = TOOLS.iter().map(|tool| (tool.command)(&format!("llama-{}", tool.name)));
    for command in tools.chain([root()]) {
        let path = folder.join(format!("{}.1", command.get_name()));
        let page = puna_flags::man_page(command)?;
        fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// The command of a tool without flags.
pub fn plain_command(program: &str, about: &'static str, argument: &'static str) -> Command {
    let usage = format!("{program} {argument}");
    Command::new(program.replace(' ', "-")).bin_name(program.to_owned()).about(about).override_usage(usage)
}

fn plain_help(invocation: &Invocation) -> Result<(), Failure> {
    let name = invocation.program.rsplit([' ', '-']).next().unwrap_or("");
    let tool = tools::find(name).ok_or_else(|| tools::unknown(name, "llama"))?;
    print((tool.command)(&invocation.program).render_help().to_string().as_bytes())
}

fn root() -> Command {
    let tools =
        TOOLS.iter().map(|tool| (tool.name, (tool.command)(&format!("llama {}", tool.name)))).collect();
    puna_flags::program("llama", ABOUT, tools)
}

fn text_arguments(invocation: &Invocation) -> Result<Vec<String>, Failure> {
    let text = |argument: &OsString| argument.to_str().map(str::to_owned);
    let all: Option<Vec<String>> = invocation.arguments.iter().map(text).collect();
    all.ok_or_else(|| invocation.usage("an argument is not valid UTF-8"))
}
