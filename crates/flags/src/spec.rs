//! A tool's command line: which rows of a table it has, and the `clap` command made of them.

use crate::flag::{Flag, Group, Kind, ToolSet};
use clap::{Arg, ArgAction, Command};

/// Arguments that are no flags.
pub struct Positional<C: 'static> {
    /// Name in the help text.
    pub placeholder: &'static str,
    /// One sentence for the help text.
    pub help: &'static str,
    /// Called for each of them in order.
    pub set: fn(&mut C, &str),
}

/// The command line of one tool.
pub struct Spec<C: 'static> {
    /// Name of the tool: `cli`.
    pub name: &'static str,
    /// The tool as a member of the sets in the table.
    pub tool: ToolSet,
    /// What the tool does, one sentence.
    pub about: &'static str,
    /// The table.
    pub groups: &'static [Group<C>],
    /// Arguments that are no flags, if the tool takes any.
    pub positional: Option<Positional<C>>,
}

impl<C> Spec<C> {
    /// The tool's rows.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag<C>> + use<C> {
        let tool = self.tool;
        self.groups.iter().flat_map(|group| group.flags).filter(move |flag| flag.tools.has(tool))
    }

    /// The `clap` command of the tool: the one source of help, completions and man pages. `program` is how the
    /// tool was started, for example `llama cli` or `llama-cli`.
    pub fn command(&self, program: &str) -> Command {
        let name = program.replace(' ', "-");
        let mut command = Command::new(name)
            .bin_name(program.to_owned())
            .about(self.about)
            .disable_help_flag(true)
            .disable_version_flag(true)
            .disable_help_subcommand(true)
            .max_term_width(110);
        for group in self.groups {
            for flag in group.flags.iter().filter(|flag| flag.tools.has(self.tool)) {
                command = command.arg(argument(flag, group.heading));
                if let Some(negative) = flag.negative_name() {
                    command = command.arg(bare(Arg::new(negative).long(negative).hide(true)));
                }
            }
        }
        if let Some(positional) = &self.positional {
            let argument = Arg::new(POSITIONAL).value_name(positional.placeholder).help(positional.help);
            command = command.arg(argument.num_args(0..).action(ArgAction::Append));
        }
        command
    }

    /// The help text; with colour codes for a terminal.
    pub fn help(&self, program: &str, colour: bool) -> String {
        let text = self.command(program).render_help();
        if colour { text.ansi().to_string() } else { text.to_string() }
    }
}

/// Id of the arguments that are no flags.
pub(crate) const POSITIONAL: &str = "positional arguments";

/// An argument without a value that may be repeated; every occurrence keeps its place.
fn bare(argument: Arg) -> Arg {
    argument.num_args(0).default_missing_value("").action(ArgAction::Append)
}

fn argument<C>(flag: &Flag<C>, heading: &'static str) -> Arg {
    let name = flag.name();
    let mut argument = Arg::new(name).long(name).help(describe(flag)).help_heading(heading);
    for spelling in flag.spellings.split_whitespace() {
        match spelling.strip_prefix("--") {
            Some(long) if long != name => argument = argument.alias(long),
            Some(_) => {}
            None => {
                let mut letters = spelling.trim_start_matches('-').chars();
                if let (Some(letter), None) = (letters.next(), letters.next()) {
                    argument = argument.short(letter);
                }
            }
        }
    }
    match flag.kind {
        Kind::Value { placeholder, .. } => {
            argument.num_args(1).value_name(placeholder).action(ArgAction::Append)
        }
        Kind::NotYet { placeholder } => {
            if placeholder.is_empty() {
                bare(argument)
            } else {
                argument.num_args(1).value_name(placeholder)
            }
        }
        Kind::Switch(_) | Kind::Action(_) => bare(argument),
    }
}

/// Help text of a row: the sentence, the effect, then the other spellings, the default and the variable.
fn describe<C>(flag: &Flag<C>) -> String {
    let mut text = flag.help.to_owned();
    if let Kind::NotYet { .. } = flag.kind {
        text.push_str(" (not supported yet: an error)");
    }
    if let Some(reason) = flag.inert {
        text.push_str(&format!(" (accepted without effect: {reason})"));
    }
    let name = format!("--{}", flag.name());
    let others: Vec<&str> = flag
        .spellings
        .split_whitespace()
        .filter(|spelling| *spelling != name && spelling.chars().count() > 2)
        .collect();
    for (label, items) in [("also", others.join(" ")), ("off", flag.negative.to_owned())] {
        if !items.is_empty() {
            text.push_str(&format!(" [{label}: {items}]"));
        }
    }
    if !flag.needs.is_empty() {
        let needs: Vec<String> = flag.needs.iter().map(|name| format!("--{name}")).collect();
        text.push_str(&format!(" [with: {}]", needs.join(" or ")));
    }
    for (label, item) in [("default", flag.default), ("env", flag.env)] {
        if let Some(item) = item {
            text.push_str(&format!(" [{label}: {item}]"));
        }
    }
    text
}
