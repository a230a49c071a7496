//! From the flags that name a model to its file.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt;
use crate::invocation::Invocation;
use indicatif::ProgressBar;
use puna_flags::Model;
use puna_hub::{Event, Hub, Options, Repository, STARTER};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// The first file of the model that the flags name, downloaded if need be. Without a name it is the starter
/// model if `starter` is set, else an error.
pub fn model(
    invocation: &Invocation,
    model: &Model,
    console: &Console,
    starter: bool,
) -> Result<PathBuf, Failure> {
    if model.path.is_none() && model.hf_repo.is_none() && model.url.is_none() && !starter {
        return Err(invocation.usage("no model: give -m FILE, -hf USER/MODEL or -mu URL"));
    }
    let paths = files(invocation, model, console)?;
    paths.into_iter().next().ok_or_else(|| Failure::Failed("the model has no files".into()))
}

/// All files of the model that the flags name; the starter model without a name.
pub fn files(invocation: &Invocation, model: &Model, console: &Console) -> Result<Vec<PathBuf>, Failure> {
    if let (Some(path), None, None) = (&model.path, &model.hf_repo, &model.url) {
        return Ok(vec![path.clone()]);
    }
    let hub = hub(model)?;
    let mut bar = Download { console, bar: ProgressBar::hidden(), waits: false };
    let mut observe = |event: Event<'_>| bar.observe(event);
    interrupt::install();
    let _busy = interrupt::busy();
    if let Some(name) = &model.hf_repo {
        let repository: Repository = name.parse().map_err(|error| invocation.usage(error))?;
        return Ok(hub.pull(&repository, model.hf_file.as_deref(), &mut observe)?);
    }
    if let Some(url) = &model.url {
        return Ok(hub.fetch(url, &mut observe)?);
    }
    console.info(&format!("no model given: using {} ({})", STARTER.title, console::size(STARTER.size)));
    Ok(vec![hub.starter(&STARTER, &mut observe)?])
}

/// The hub as flags and environment describe it.
pub fn hub(model: &Model) -> Result<Hub, Failure> {
    let mut options = Options::new(cache_folder()?);
    if let Some(endpoint) = variable(&["MODEL_ENDPOINT", "HF_ENDPOINT"]) {
        options.endpoint = endpoint;
    }
    options.token = model.hf_token.clone().or_else(|| variable(&["HF_TOKEN"]));
    options.offline = model.offline;
    // What is asked for is behind one address, and that decides.
    let address = model.url.as_ref().filter(|_| model.hf_repo.is_none()).unwrap_or(&options.endpoint);
    options.proxy = proxy_for(address, &variable);
    Ok(Hub::new(options)?)
}

/// The folder for downloads: `LLAMA_CACHE`, else `puna` in the platform's cache folder.
fn cache_folder() -> Result<PathBuf, Failure> {
    if let Some(folder) = variable(&["LLAMA_CACHE"]) {
        return Ok(PathBuf::from(folder));
    }
    let home = || variable(&["HOME"]).map(PathBuf::from);
    let folder = if cfg!(windows) {
        variable(&["LOCALAPPDATA"]).map(PathBuf::from)
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Caches"))
    } else {
        variable(&["XDG_CACHE_HOME"]).map(PathBuf::from).or_else(|| home().map(|home| home.join(".cache")))
    };
    let folder = folder.ok_or_else(|| Failure::Failed("there is no cache folder: set LLAMA_CACHE".into()))?;
    Ok(folder.join("puna"))
}

/// The proxy for an address, by the customary variables, of which `variable` gives the first that is set.
fn proxy_for(url: &str, variable: &dyn Fn(&[&str]) -> Option<String>) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', ':']).next()?;
    let direct = variable(&["NO_PROXY", "no_proxy"]).is_some_and(|list| {
        list.split(',').map(|name| name.trim().trim_start_matches('.')).any(|name| {
            name == "*" || host == name || (!name.is_empty() && host.ends_with(&format!(".{name}")))
        })
    });
    let names: &[&str] = match scheme {
        "https" => &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        _ => &["http_proxy", "ALL_PROXY", "all_proxy"],
    };
    variable(names).filter(|_| !direct)
}

/// The first of these variables that is set to something.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Shows a download: a bar on a terminal, lines otherwise.
struct Download<'a> {
    console: &'a Console,
    bar: ProgressBar,
    /// Whether it was said that another process downloads the file.
    waits: bool,
}

impl Download<'_> {
    fn observe(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Start { name, bytes, done } => {
                self.waits = false;
                self.bar.finish_and_clear();
                let of = bytes.map(|bytes| format!(" ({})", console::size(bytes))).unwrap_or_default();
                let from = if done > 0 {
                    format!(", {} of it are here", console::size(done))
                } else {
                    String::new()
                };
                self.console.info(&format!("downloading {name}{of}{from}"));
                self.bar = self.console.progress(bytes);
                self.bar.set_position(done);
            }
            Event::Progress { done } => self.bar.set_position(done),
            Event::Done { .. } => self.bar.finish_and_clear(),
            Event::Waiting { name } => {
                if !std::mem::replace(&mut self.waits, true) {
                    self.console
                        .info(&format!("another process downloads {name}: waiting for it (Ctrl-C stops)"));
                }
            }
            Event::Note(note) => self.console.warn(note),
        }
        if interrupt::take() {
            self.bar.finish_and_clear();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_chooses_its_proxy() {
        let set =
            [("HTTPS_PROXY", "http://one:1"), ("http_proxy", "http://two:2"), ("NO_PROXY", "a.org, .b.org")];
        let variable = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| set.iter().find(|(own, _)| own == name))
                .map(|(_, value)| (*value).to_owned())
        };
        for (url, expected) in [
            ("https://c.org/x", Some("http://one:1")),
            ("http://c.org/x", Some("http://two:2")),
            ("https://a.org:8080/x", None),
            ("https://m.b.org/x", None),
            ("https://notb.org/x", Some("http://one:1")),
            ("nonsense", None),
        ] {
            assert_eq!(proxy_for(url, &variable).as_deref(), expected, "{url}");
        }
    }
}
