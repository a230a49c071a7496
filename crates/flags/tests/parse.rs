//! Command lines and environments, and what they mean.

use std::ffi::OsString;

use puna_flags::{
    Action, Config, FLAGS, Layers, LoadMode, Outcome, Positional, Spec, Toggle, ToolSet, UsageError, bench,
};

const CLI: Spec<Config> =
    Spec { name: "cli", tool: ToolSet::CLI, about: "", groups: FLAGS, positional: None };
const RUN: Spec<Config> = Spec {
    name: "run",
    tool: ToolSet::RUN,
    positional: Some(Positional {
        placeholder: "TEXT",
        help: "",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
    ..CLI
};

fn parse_with(
    spec: &Spec<Config>,
    line: &[&str],
    environment: &[(&str, &str)],
) -> Result<(Config, Vec<String>), UsageError> {
    let arguments: Vec<_> = line.iter().map(Into::into).collect();
    let lookup = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
    };
    match spec.parse(Config::default(), &arguments, &lookup)? {
        Outcome::Run { config, warnings } => Ok((config, warnings)),
        Outcome::Action(action) => panic!("{action:?}"),
    }
}

fn parse(line: &[&str]) -> Config {
    parse_with(&CLI, line, &[]).unwrap().0
}

fn refuse(line: &[&str]) -> String {
    parse_with(&CLI, line, &[]).unwrap_err().to_string()
}

#[test]
fn all_spellings_reach_the_field() {
    for line in [["-n", "7"], ["--predict", "7"], ["--n-predict", "7"], ["--n_predict", "7"]] {
        assert_eq!(parse(&line).prompt.predict, Some(7), "{line:?}");
    }
    assert_eq!(parse(&["-n=7"]).prompt.predict, Some(7));
    assert_eq!(parse(&["-hf", "a/b:q8_0"]).model.hf_repo.as_deref(), Some("a/b:q8_0"));
    assert_eq!(parse(&["-ctk", "Q8_0", "-ctv=q4_0"]).context.type_k, "q8_0");
    assert_eq!(parse(&["-c", "100", "-c", "200"]).context.size, 200);
    assert_eq!(parse(&["-r", "a", "-r", "b"]).prompt.reverse, ["a", "b"]);
}

#[test]
fn values_may_look_like_flags_where_text_is_meant() {
    assert_eq!(parse(&["-p", "-ngl"]).prompt.text.as_deref(), Some("-ngl"));
    assert_eq!(parse(&["-p", "--"]).prompt.text.as_deref(), Some("--"));
    assert_eq!(parse(&["-p", ""]).prompt.text.as_deref(), Some(""));
    assert_eq!(parse(&["--prompt=a=b"]).prompt.text.as_deref(), Some("a=b"));
    assert_eq!(parse(&["-n", "-1", "--temp", "-0.5"]).prompt.predict, Some(-1));
}

#[test]
fn words_may_be_left_out() {
    assert_eq!(parse(&["-co"]).chat.color, Toggle::On);
    assert_eq!(parse(&["-co", "off"]).chat.color, Toggle::Off);
    assert_eq!(parse(&["-co", "-c", "9"]).chat.color, Toggle::On);
    assert_eq!(parse(&["-co", "-c", "9"]).context.size, 9);
    assert!(refuse(&["-fa=maybe"]).contains("on, off or auto"));
    assert!(refuse(&["-fa", "maybe"]).contains("expected one of on, off, auto"));
}

#[test]
fn the_last_flag_wins_and_older_spellings_combine() {
    assert!(!parse(&["--display-prompt", "--no-display-prompt"]).prompt.display);
    assert!(parse(&["--no-display-prompt", "--display-prompt"]).prompt.display);
    assert_eq!(parse(&["--mlock", "--no-mmap"]).model.load_mode, LoadMode::Mlock);
    assert_eq!(parse(&["--no-mmap", "--mlock"]).model.load_mode, LoadMode::Mlock);
    assert_eq!(parse(&["--mlock"]).model.load_mode, LoadMode::MmapMlock);
    assert_eq!(
        parse(&["--samplers", "top_k", "--sampler-seq", "t"]).sampling.samplers.unwrap(),
        ["temperature"]
    );
    assert_eq!(parse(&["--sampler-seq", "t", "--samplers", "top_k"]).sampling.samplers.unwrap(), ["top_k"]);
}

#[test]
fn the_environment_fills_in_for_absent_flags() {
    let environment =
        [("LLAMA_ARG_CTX_SIZE", "64"), ("LLAMA_ARG_NO_CONTEXT_SHIFT", "1"), ("LLAMA_ARG_OFFLINE", "on")];
    let (config, warnings) = parse_with(&CLI, &[], &environment).unwrap();
    assert_eq!((config.context.size, config.context.shift, config.model.offline), (64, false, true));
    assert!(warnings.is_empty());
    let (config, warnings) = parse_with(&CLI, &["-c", "32"], &environment).unwrap();
    assert_eq!(config.context.size, 32);
    assert_eq!(warnings, ["--ctx-size overrides environment variable LLAMA_ARG_CTX_SIZE"]);
    for (value, expected) in
        [("1", true), ("true", true), ("on", true), ("enabled", true), ("0", false), ("off", false)]
    {
        let shift = parse_with(&CLI, &[], &[("LLAMA_ARG_CONTEXT_SHIFT", value)]).unwrap().0.context.shift;
        assert_eq!(shift, expected, "{value}");
    }
    let error = parse_with(&CLI, &[], &[("LLAMA_ARG_CTX_SIZE", "many")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "environment variable LLAMA_ARG_CTX_SIZE (--ctx-size) cannot be \"many\": expected a whole number"
    );
}

#[test]
fn errors_name_flag_value_and_remedy() {
    for (line, expected) in [
        (&["--tmep", "1"][..], "unknown flag --tmep; did you mean --temp?"),
        (&["-nlg", "1"], "unknown flag -nlg; did you mean -ngl?"),
        (&["--frobnicate"], "unknown flag --frobnicate"),
        (&["--ids"], "cli has no flag --ids"),
        (&["-c"], "-c needs a value: N"),
        (&["-m", "-c", "5"], "-m needs a value: FILE"),
        (&["-c", "x"], "--ctx-size cannot be \"x\": expected a whole number"),
        (&["-c", "-5"], "--ctx-size cannot be \"-5\": expected a whole number of at least 0"),
        (&["--top-p", "2"], "--top-p cannot be \"2\": expected 0 to 1"),
        (&["--mlock=1"], "--mlock takes no value, but was given \"1\""),
        (&["--mmproj", "x"], "--mmproj is not supported yet"),
        (&["hello"], "unexpected argument \"hello\""),
        (&["-dev", "A,a"], "--device cannot be \"A,a\": a is named twice"),
        (&["-dev", "A,none"], "--device cannot be \"A,none\": expected names of devices, auto or none"),
        (&["-dev", ""], "--device cannot be \"\": expected names of devices, auto or none"),
        (&["-ts", "1,-1"], "--tensor-split cannot be \"1,-1\": expected numbers of at least 0"),
        (&["-ts", "0,0"], "--tensor-split cannot be \"0,0\": expected a share above 0 for some device"),
        (&["-ot", "ffn"], "--override-tensor cannot be \"ffn\": expected REGEX=DEVICE"),
        (&["-sm", "rows"], "--split-mode cannot be \"rows\": expected one of none, layer, row, tensor"),
        (&["-ngl", "some"], "--gpu-layers cannot be \"some\": expected a number, auto or all"),
    ] {
        assert_eq!(refuse(line), expected, "{line:?}");
    }
}

#[test]
fn flags_that_do_nothing_alone_are_refused() {
    const SERVE: Spec<Config> = Spec { name: "serve", tool: ToolSet::SERVE, ..CLI };
    let serve = |line: &[&str], environment: &[(&str, &str)]| {
        parse_with(&SERVE, line, environment).map(|(_, warnings)| warnings).map_err(|error| error.to_string())
    };
    for (line, error) in [
        (&["--cache-disk-size", "5"][..], "--cache-disk-size needs --cache-disk"),
        (&["-m", "x", "--models-max", "2"], "--models-max needs --models-dir or --models-preset"),
        (&["--no-models-autoload"], "--models-autoload needs --models-dir or --models-preset"),
        (&["--audit-prompts"], "--audit-prompts needs --audit-log"),
        (&["--ssl-key-file", "x"], "--ssl-key-file needs --ssl-cert-file"),
        (&["--ssl-cert-file", "x"], "--ssl-cert-file needs --ssl-key-file"),
        (&["--lora-init-without-apply"], "--lora-init-without-apply needs --lora or --lora-scaled"),
    ] {
        assert_eq!(serve(line, &[]), Err(error.to_owned()), "{line:?}");
    }
    for line in [
        &["--cache-disk-size", "5", "--cache-disk", "x"][..],
        &["--models-preset", "x", "--models-max", "2"],
        &["--lora-scaled", "a:1", "--lora-init-without-apply"],
    ] {
        assert_eq!(serve(line, &[]), Ok(Vec::new()), "{line:?}");
    }
    // The environment is not written for one command.
    let warning =
        "environment variable LLAMA_ARG_MODELS_MAX does nothing without --models-dir or --models-preset";
    assert_eq!(serve(&["-m", "x"], &[("LLAMA_ARG_MODELS_MAX", "2")]), Ok(vec![warning.to_owned()]));
    let both = [("LLAMA_ARG_MODELS_MAX", "2"), ("LLAMA_ARG_MODELS_DIR", "x")];
    assert_eq!(serve(&[], &both), Ok(Vec::new()));
    assert_eq!(serve(&["--models-max", "2"], &both[1..]), Ok(Vec::new()));
}

#[test]
fn numbers_out_of_range_are_told_the_range() {
    const SERVE: Spec<Config> = Spec { name: "serve", tool: ToolSet::SERVE, ..CLI };
    for (line, part) in [
        (&["--sleep-idle-seconds", "-5"][..], "expected -1 or a whole number of at least 1"),
        (&["-np", "0"], "expected -1 or a whole number of at least 1"),
        (&["--port", "70000"], "expected a whole number of at most 65535"),
        (&["--timeout", "-1"], "expected a whole number of at least 1"),
        (&["-cram", "-2"], "expected a whole number of at least -1"),
    ] {
        let error = parse_with(&SERVE, line, &[]).unwrap_err().to_string();
        assert!(error.ends_with(part), "{error}");
    }
}

#[test]
fn devices_and_what_goes_to_them() {
    let line = [
        "-dev",
        "CUDA0,CUDA1",
        "-ngl",
        "12",
        "-ts",
        "3,1",
        "-sm",
        "layer",
        "-mg",
        "1",
        "-ncmoe",
        "4",
        "-ncffn",
        "2",
        "-ot",
        "ffn_.*=CPU,blk\\.1\\.=CUDA1",
        "-nkvo",
        "-fit",
        "off",
        "-fitt",
        "512,256",
        "-fitc",
        "2048",
    ];
    let (config, warnings) = parse_with(&RUN, &line, &[]).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let device = config.device;
    assert_eq!(device.names, Some(vec!["CUDA0".into(), "CUDA1".into()]));
    assert_eq!((device.layers, device.shares, device.main), (Layers::Count(12), vec![3.0, 1.0], 1));
    assert_eq!((device.cpu_moe, device.cpu_ffn, device.kv_offload, device.fit), (4, 2, false, false));
    assert_eq!((device.fit_target, device.fit_context), (vec![512, 256], 2048));
    let overrides =
        [("ffn_.*", "CPU"), ("blk\\.1\\.", "CUDA1")].map(|(regex, name)| (regex.into(), name.into()));
    assert_eq!(device.overrides, overrides);
    for (text, layers) in
        [("auto", Layers::Fitting), ("-1", Layers::Fitting), ("all", Layers::All), ("0", Layers::Count(0))]
    {
        assert_eq!(parse_with(&RUN, &["-ngl", text], &[]).unwrap().0.device.layers, layers);
    }
    assert_eq!(parse_with(&RUN, &["-dev", "none", "-cmoe"], &[]).unwrap().0.device.names, Some(Vec::new()));
}

#[test]
fn other_arguments_keep_their_order() {
    let (config, _) =
        parse_with(&RUN, &["model.gguf", "-c", "5", "hello", "--", "-x", "--temp"], &[]).unwrap();
    assert_eq!(config.positional, ["model.gguf", "hello", "-x", "--temp"]);
    assert_eq!(config.context.size, 5);
}

#[test]
fn actions_end_the_parsing() {
    for (line, expected) in [
        (&["-h"][..], Action::Help),
        (&["-c", "5", "--version", "--nonsense"], Action::Version),
        (&["-cl"], Action::ListModels),
        (&["--list-devices"], Action::ListDevices),
    ] {
        let arguments: Vec<_> = line.iter().map(Into::into).collect();
        assert_eq!(CLI.parse(Config::default(), &arguments, &|_| None), Ok(Outcome::Action(expected)));
    }
}

#[cfg(unix)]
#[test]
fn invalid_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let arguments = [std::ffi::OsString::from_vec(vec![b'-', 0xff])];
    let error = CLI.parse(Config::default(), &arguments, &|_| None).unwrap_err();
    assert!(matches!(error, UsageError::NotUtf8 { .. }));
}

#[test]
fn bench_flags_repeat_and_list() {
    let line = [
        "-p", "8,16", "-p", "32-64*2", "-n", "0", "-pg", "4,2", "-b", "8,9", "-ctk", "f16,q8_0", "-t", "1-2",
    ];
    let arguments: Vec<_> = line.iter().map(Into::into).collect();
    let outcome = bench::SPEC.parse(bench::Bench::default(), &arguments, &|_| None).unwrap();
    let Outcome::Run { config, .. } = outcome else { panic!() };
    assert_eq!(config.n_prompt, [8, 16, 32, 64]);
    assert_eq!(config.n_pg, [(4, 2)]);
    assert_eq!(config.lists.n_batch, [8, 9]);
    assert_eq!(config.lists.type_k, ["f16", "q8_0"]);
    assert_eq!(config.lists.n_threads, [1, 2]);
    assert_eq!(config.tests(&bench::Settings::default()).unwrap().len(), 2 * 2 * 2 * 5);
}

#[test]
fn bench_measures_what_has_no_effect_once() {
    let parse = |line: &[&str]| {
        let arguments: Vec<_> = line.iter().map(Into::into).collect();
        bench::SPEC.parse(bench::Bench::default(), &arguments, &|_| None)
    };
    for (flag, one, two) in [
        ("-fa", "on", "on,off"),
        ("--poll", "50", "0-100+50"),
        ("--repack", "1", "0,1"),
        ("-C", "0x1", "0x1,0x3"),
    ] {
        assert!(parse(&[flag, one]).is_ok(), "{flag}");
        for line in [&[flag, two][..], &[flag, one, flag, one]] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.ends_with("one value only, because it has no effect here"), "{line:?}: {error}");
        }
    }
    for line in
        [["-dev", "CPU,reference"], ["-dev", "A/B,none"], ["-ngl", "0,10-20+5,-1"], ["-ts", "1/2,2/1"]]
    {
        assert!(parse(&line).is_ok(), "{line:?}");
    }
    assert!(parse(&["-dev", "CPU/CPU"]).unwrap_err().to_string().contains("twice"));
    assert!(parse(&["-ngl", "-2"]).unwrap_err().to_string().contains("expected -1 or more"));
    assert!(parse(&["-t", "4096"]).is_ok());
    assert!(parse(&["-t", "4097"]).unwrap_err().to_string().contains("at most 4096"));
}

#[test]
fn settings_of_files_become_arguments() {
    let serve = Spec { name: "serve", tool: ToolSet::SERVE, ..CLI };
    for (key, value, argument) in [
        ("c", "512", Some("--ctx-size=512")),
        ("ctx-size", "512", Some("--ctx-size=512")),
        ("LLAMA_ARG_CTX_SIZE", "512", Some("--ctx-size=512")),
        ("hf", "a/b:q8_0", Some("--hf-repo=a/b:q8_0")),
        ("metrics", "true", Some("--metrics")),
        ("metrics", "false", None),
        ("slots", "off", Some("--no-slots")),
        ("no-slots", "1", Some("--no-slots")),
        ("no-slots", "0", Some("--slots")),
    ] {
        assert_eq!(serve.setting(key, value).unwrap().as_deref(), argument, "{key} = {value}");
    }
    for (key, value, part) in [
        ("ctx-siz", "1", "did you mean --ctx-size?"),
        ("mmproj", "x", "not supported yet"),
        ("metrics", "maybe", "--metrics cannot be \"maybe\""),
        ("version", "1", "only prints"),
        ("conversation", "1", "no flag"),
    ] {
        let error = serve.setting(key, value).unwrap_err().to_string();
        assert!(error.contains(part), "{key} = {value}: {error}");
    }
    let line: Vec<OsString> = ["-c", "5", "--no-slots", "-np=2", "--api-key", "a b"].map(Into::into).to_vec();
    assert_eq!(serve.plain(&line).unwrap(), ["--ctx-size=5", "--no-slots", "--parallel=2", "--api-key=a b"]);
    assert!(serve.plain(&["--what".into()]).is_err());
}
