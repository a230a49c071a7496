//! What is told before a model is loaded, which may take long: files that cannot be read, templates that are none.

use crate::chat::template;
use crate::failure::Failure;
use crate::invocation::Invocation;
use puna_flags::Config;
use std::fs::File;
use std::path::Path;

/// The files that flags name and that are read later, each with its flag.
fn files(config: &Config) -> Vec<(&'static str, &Path)> {
    let (model, server) = (&config.model, &config.server);
    let adapters = model.adapters.iter().map(|(path, _)| ("--lora", path));
    let vectors = model.control_vectors.iter().map(|(path, _)| ("--control-vector", path));
    let single = [
        ("--system-prompt-file", &config.chat.system_file),
        ("--ssl-key-file", &server.tls_key),
        ("--ssl-cert-file", &server.tls_certificate),
        ("--api-keys", &server.key_file),
        ("--audit-rules", &server.audit_rules),
        ("--models-preset", &server.models_preset),
    ];
    let single = single.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
    adapters.chain(vectors).chain(single).map(|(flag, path)| (flag, path.as_path())).collect()
}

/// Checks the files and the template that the flags name.
pub fn check(invocation: &Invocation, config: &Config) -> Result<(), Failure> {
    for (flag, path) in files(config) {
        let failed = |reason: &dyn std::fmt::Display| {
            Err(Failure::Failed(format!("{flag}: {}: {reason}", path.display())))
        };
        match File::open(path).and_then(|file| file.metadata()) {
            Ok(metadata) if metadata.is_dir() => return failed(&"it is a folder"),
            Ok(_) => {}
            Err(error) => return failed(&error),
        }
    }
    template::check(invocation, &config.chat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use puna_flags::Chat;

    #[test]
    fn files_and_templates_are_checked() {
        let invocation = Invocation::new("llama cli".into(), Vec::new());
        let message = |config: &Config| check(&invocation, config).map_err(|failure| failure.message());
        let mut config = Config::default();
        assert_eq!(message(&config), Ok(()));
        config.server.tls_key = Some("/nope.pem".into());
        assert!(message(&config).is_err_and(|text| text.starts_with("--ssl-key-file: /nope.pem: ")));
        config.model.adapters.push((env!("CARGO_MANIFEST_DIR").into(), 1.0));
        assert!(message(&config).is_err_and(|text| text.ends_with(": it is a folder")));
        let template = |name: &str| Config {
            chat: Chat { template: Some(name.to_owned()), ..Chat::default() },
            ..Config::default()
        };
        assert_eq!(message(&template("chatml")), Ok(()));
        for (name, part) in [
            ("chatlm", "did you mean chatml?"),
            ("nosuchname", "'llama template --help' lists them"),
            ("a\n{% for %}", "line 2"),
        ] {
            assert!(message(&template(name)).is_err_and(|text| text.contains(part)), "{name}");
        }
        // What stands on the command line is a wrong one; what a template does is not.
        let is_usage = |config: &Config| matches!(check(&invocation, config), Err(Failure::Usage(..)));
        assert!(is_usage(&template("chatlm")) && !is_usage(&template("{% for %}")));
        let chat = Chat { template_values: Some("{a: 1}".into()), ..Chat::default() };
        assert!(is_usage(&Config { chat, ..Config::default() }));
        let chat = Chat { template: Some("{{ 1 }}".into()), jinja: false, ..Chat::default() };
        assert!(is_usage(&Config { chat, ..Config::default() }));
    }
}
