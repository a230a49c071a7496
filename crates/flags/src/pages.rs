//! Completion scripts and man pages, made of the same commands that parse.

use clap::Command;
pub use clap_complete::Shell;
use std::str::FromStr;

/// A shell by its name, or the names that exist.
pub fn shell(name: &str) -> Result<Shell, String> {
    Shell::from_str(name).map_err(|_| "expected one of bash, elvish, fish, powershell, zsh".to_owned())
}

/// The command of a program with sub-commands, for completions and man pages.
pub fn program(name: &'static str, about: &'static str, tools: Vec<(&'static str, Command)>) -> Command {
    let tools = tools.into_iter().map(|(tool, command)| command.name(tool));
    Command::new(name).about(about).disable_help_subcommand(true).subcommands(tools)
}

/// The completion script of a command for a shell.
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The man page of a command in troff.
pub fn man_page(command: Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
