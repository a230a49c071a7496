//! From arguments and environment to a configuration.
//!
//! Arguments are first brought into one form (`--name=value`) with the help of the table, because `clap` knows
//! neither long names after one dash (`-ngl`) nor values that look like flags; `clap` then checks them, and the
//! setters are called in the order of the command line.

use crate::error::{UsageError, either};
use crate::flag::{Action, Flag, Kind};
use crate::spec::{POSITIONAL, Spec};
use crate::suggest::closest;
use crate::values::boolean;
use std::collections::BTreeSet;
use std::ffi::OsString;

/// A usable command line.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<C> {
    /// Run the tool.
    Run {
        /// What the flags say.
        config: C,
        /// Things the user should know, one line each.
        warnings: Vec<String>,
    },
    /// Print something instead.
    Action(Action),
}

/// What one argument turned out to be.
struct Found<C: 'static> {
    flag: &'static Flag<C>,
    positive: bool,
}

impl<C> Spec<C> {
    /// Reads a command line over the configuration `config`. `arguments` come without the program's name;
    /// `environment` looks up a variable.
    pub fn parse(
        &self,
        mut config: C,
        arguments: &[OsString],
        environment: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Outcome<C>, UsageError> {
        let plain = match self.normalise(arguments)? {
            Normal::Action(action) => return Ok(Outcome::Action(action)),
            Normal::Arguments(plain) => plain,
        };
        let matches = self
            .command(self.name)
            .no_binary_name(true)
            .try_get_matches_from(plain)
            .map_err(|error| UsageError::Other(first_line(&error.to_string())))?;

        let mut calls: Vec<(usize, &Flag<C>, bool, String)> = Vec::new();
        let mut given = BTreeSet::new();
        for flag in self.flags() {
            let names = [(Some(flag.name()), true), (flag.negative_name(), false)];
            for (name, positive) in names.into_iter().filter_map(|(name, positive)| Some((name?, positive))) {
                let indices = matches.indices_of(name).into_iter().flatten();
                let values = matches.get_many::<String>(name).into_iter().flatten();
                for (index, value) in indices.zip(values) {
                    given.insert(flag.name());
                    calls.push((index, flag, positive, value.clone()));
                }
            }
        }

        let mut warnings = Vec::new();
        let mut variables = BTreeSet::new();
        for flag in self.flags() {
            let Some((variable, value)) = variable_of(flag, environment) else { continue };
            variables.insert(flag.name());
            let value =
                value.into_string().map_err(|_| UsageError::NotUtf8Variable { name: variable.clone() })?;
            if given.contains(flag.name()) {
                warnings.push(format!("--{} overrides environment variable {variable}", flag.name()));
            } else {
                apply_variable(&mut config, flag, &variable, &value)?;
            }
        }
        for flag in self.flags().filter(|flag| !flag.needs.is_empty()) {
            let there = |name: &&str| given.contains(name) || variables.contains(name);
            if !there(&flag.name()) || flag.needs.iter().any(there) {
                continue;
            }
            let needs: Vec<String> = flag.needs.iter().map(|name| format!("--{name}")).collect();
            if given.contains(flag.name()) {
                return Err(UsageError::Alone { flag: format!("--{}", flag.name()), needs });
            }
            let variable = flag.env.unwrap_or_default();
            warnings.push(format!("environment variable {variable} does nothing without {}", either(&needs)));
        }
        calls.sort_by_key(|(index, ..)| *index);
        for (_, flag, positive, value) in calls {
            let shown = if positive { flag.name() } else { flag.negative_name().unwrap_or(flag.name()) };
            set(&mut config, flag, positive, &value).map_err(|reason| UsageError::BadValue {
                flag: format!("--{shown}"),
                value,
                reason,
            })?;
        }
        if let Some(positional) = &self.positional {
            for value in matches.get_many::<String>(POSITIONAL).into_iter().flatten() {
                (positional.set)(&mut config, value);
            }
        }
        Ok(Outcome::Run { config, warnings })
    }

    /// The flags of a command line in the form `--name=value`, each by its own name. Arguments that are no flags, and
    /// flags that only print something, are left out.
    pub fn plain(&self, arguments: &[OsString]) -> Result<Vec<String>, UsageError> {
        Ok(match self.normalise(arguments)? {
            Normal::Arguments(plain) => plain.into_iter().take_while(|argument| argument != "--").collect(),
            Normal::Action(_) => Vec::new(),
        })
    }

    /// A setting of a file in the form `--name=value`. Its key is a spelling of a flag without dashes, or its environment
    /// variable; the value of a flag that takes none says whether it is on. Nothing for a flag that is off anyway.
    pub fn setting(&self, key: &str, value: &str) -> Result<Option<String>, UsageError> {
        let known = self.flags().find(|flag| flag.env == Some(key));
        let known = known.map(|flag| Found { flag, positive: true });
        let dashes = [format!("--{key}"), format!("-{key}")];
        let found = known.or_else(|| dashes.iter().find_map(|spelling| self.find(spelling)));
        let Some(Found { flag, positive }) = found else { return Err(self.unknown(format!("--{key}"))) };
        let wrong = |reason: String| UsageError::BadValue {
            flag: format!("--{}", flag.name()),
            value: value.to_owned(),
            reason,
        };
        match flag.kind {
            Kind::NotYet { .. } => Err(UsageError::NotYet { flag: format!("--{key}") }),
            Kind::Action(_) => Err(wrong("this only prints something".into())),
            Kind::Value { .. } => Ok(Some(format!("--{}={value}", flag.name()))),
            Kind::Switch(_) => match (boolean(value).map_err(wrong)? == positive, flag.negative_name()) {
                (true, _) => Ok(Some(format!("--{}", flag.name()))),
                (false, Some(negative)) => Ok(Some(format!("--{negative}"))),
                (false, None) => Ok(None),
            },
        }
    }

    /// Brings arguments into the form `--name=value`, with everything that is no flag at the end.
    fn normalise(&self, arguments: &[OsString]) -> Result<Normal, UsageError> {
        let mut plain = Vec::new();
        let mut rest = Vec::new();
        let mut arguments = arguments.iter();
        let mut pending: Option<String> = None;
        loop {
            let argument = match pending.take() {
                Some(argument) => argument,
                None => match arguments.next() {
                    Some(argument) => utf8(argument)?,
                    None => break,
                },
            };
            if argument == "--" {
                for argument in arguments.by_ref() {
                    rest.push(utf8(argument)?);
                }
                break;
            }
            if !argument.starts_with('-') || argument == "-" {
                if self.positional.is_none() {
                    return Err(UsageError::UnexpectedArgument { argument });
                }
                rest.push(argument);
                continue;
            }
            let (spelling, attached) = match argument.split_once('=') {
                Some((spelling, value)) => (spelling.to_owned(), Some(value.to_owned())),
                None => (argument.clone(), None),
            };
            let Some(Found { flag, positive }) = self.find(&spelling) else {
                return Err(self.unknown(spelling));
            };
            let name = if positive { flag.name() } else { flag.negative_name().unwrap_or(flag.name()) };
            match flag.kind {
                Kind::NotYet { .. } => return Err(UsageError::NotYet { flag: spelling }),
                Kind::Action(action) => return Ok(Normal::Action(action)),
                Kind::Switch(_) => {
                    if let Some(value) = attached {
                        return Err(UsageError::UnexpectedValue { flag: spelling, value });
                    }
                    plain.push(format!("--{name}"));
                }
                Kind::Value { .. } => {
                    let is_attached = attached.is_some();
                    let next = match attached {
                        Some(value) => Some(value),
                        None => arguments.next().map(utf8).transpose()?,
                    };
                    let value = self.value(flag, &spelling, next, is_attached, &mut pending)?;
                    plain.push(format!("--{name}={value}"));
                }
            }
        }
        if !rest.is_empty() {
            plain.push("--".to_owned());
            plain.extend(rest);
        }
        Ok(Normal::Arguments(plain))
    }

    /// The value of a flag that takes one: `given` is what is attached to the flag or the next argument, if there is one.
    /// An argument that is no value of a flag that may stand alone goes to `pending`.
    fn value(
        &self,
        flag: &Flag<C>,
        spelling: &str,
        given: Option<String>,
        is_attached: bool,
        pending: &mut Option<String>,
    ) -> Result<String, UsageError> {
        let Kind::Value { placeholder, text, words, .. } = flag.kind else { return Ok(String::new()) };
        let missing =
            || UsageError::MissingValue { flag: spelling.to_owned(), placeholder: placeholder.to_owned() };
        let Some(given) = given else {
            return words.first().map(|word| (*word).to_owned()).ok_or_else(missing);
        };
        if is_attached || words.contains(&given.as_str()) {
            return Ok(given);
        }
        let Some(first) = words.first() else {
            // Free text may look like a flag.
            return if !text && self.find(&given).is_some() { Err(missing()) } else { Ok(given) };
        };
        if self.positional.is_none() && !given.starts_with('-') {
            let reason = format!("expected one of {}", words.join(", "));
            return Err(UsageError::BadValue { flag: spelling.to_owned(), value: given, reason });
        }
        *pending = Some(given);
        Ok((*first).to_owned())
    }

    fn find(&self, spelling: &str) -> Option<Found<C>> {
        find_in(self.flags(), spelling)
    }

    fn unknown(&self, flag: String) -> UsageError {
        let all = self.groups.iter().flat_map(|group| group.flags);
        if find_in(all, &flag).is_some() {
            return UsageError::OtherTool { flag, tool: self.name.to_owned() };
        }
        let spellings = self
            .flags()
            .flat_map(|flag| flag.spellings.split_whitespace().chain(flag.negative.split_whitespace()));
        let suggestion = closest(&dashed(&flag), spellings).map(str::to_owned);
        UsageError::Unknown { flag, suggestion }
    }
}

enum Normal {
    Arguments(Vec<String>),
    Action(Action),
}

fn find_in<C>(flags: impl Iterator<Item = &'static Flag<C>>, spelling: &str) -> Option<Found<C>> {
    let spelling = dashed(spelling);
    let mut flags = flags;
    flags.find_map(|flag| {
        let is = |names: &str| names.split_whitespace().any(|name| name == spelling);
        // A row whose only spelling is `-pg` is also known as `--pg`.
        let own = spelling.strip_prefix("--").is_some_and(|name| name == flag.name());
        match (is(flag.spellings) || own, is(flag.negative)) {
            (true, _) => Some(Found { flag, positive: true }),
            (_, true) => Some(Found { flag, positive: false }),
            _ => None,
        }
    })
}

/// Underscores of long names are dashes.
fn dashed(spelling: &str) -> String {
    if spelling.starts_with("--") { spelling.replace('_', "-") } else { spelling.to_owned() }
}

fn utf8(argument: &OsString) -> Result<String, UsageError> {
    let lossy = || argument.to_string_lossy().into_owned();
    argument.to_str().map(str::to_owned).ok_or_else(|| UsageError::NotUtf8 { argument: lossy() })
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or("").trim();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

fn set<C>(config: &mut C, flag: &Flag<C>, positive: bool, value: &str) -> Result<(), String> {
    match flag.kind {
        Kind::Switch(set) => {
            set(config, positive);
            Ok(())
        }
        Kind::Value { set, .. } => set(config, value),
        Kind::Action(_) | Kind::NotYet { .. } => Ok(()),
    }
}

/// The variable that is set for a flag, and its value. A switch that can be turned off also has a variable with
/// `NO_` in its name, whose presence turns it off.
fn variable_of<C>(
    flag: &Flag<C>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Option<(String, OsString)> {
    let name = flag.env?;
    if !flag.negative.is_empty() {
        let negative = name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_");
        if environment(&negative).is_some() {
            return Some((negative, "0".into()));
        }
    }
    environment(name).map(|value| (name.to_owned(), value))
}

fn apply_variable<C>(config: &mut C, flag: &Flag<C>, variable: &str, value: &str) -> Result<(), UsageError> {
    let failed = |reason| UsageError::Environment {
        name: variable.to_owned(),
        flag: format!("--{}", flag.name()),
        value: value.to_owned(),
        reason,
    };
    match flag.kind {
        Kind::Switch(set) => match boolean(value).map_err(failed)? {
            true => set(config, true),
            false if !flag.negative.is_empty() => set(config, false),
            // What is always on cannot be switched off.
            false if flag.default == Some("on") => {
                let flag = format!("environment variable {variable}={value}");
                return Err(UsageError::NotYet { flag });
            }
            // Off is what an absent flag means anyway.
            false => {}
        },
        Kind::Value { set, .. } => set(config, value).map_err(failed)?,
        Kind::NotYet { .. } => {
            return Err(UsageError::NotYet {
                flag: format!("environment variable {variable}, that is --{},", flag.name()),
            });
        }
        Kind::Action(_) => {}
    }
    Ok(())
}
