//! What the environment says: the variables of llama.cpp's OpenVINO back end, and some of our own.

use std::path::PathBuf;

use crate::translate::CacheForm;
use crate::weights::Kind;

/// Looks up a variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Every variable, read once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Device of the library: `CPU`, `GPU`, `GPU.1`, `NPU`. Default: `CPU`.
    pub device: Option<String>,
    /// Folder of the library's own cache of compiled models.
    pub cache_folder: Option<PathBuf>,
    /// Folder of compiled models that skip translation, too.
    pub compiled_model_folder: Option<PathBuf>,
    /// Tokens of a prompt that a model of fixed extents takes at once. Default: 256.
    pub prefill_chunk: Option<u32>,
    /// Passed on as `NPU_COMPILATION_MODE_PARAMS`.
    pub npu_compile_config: Option<String>,
    /// Keys and values are kept by the model.
    pub stateful: bool,
    /// Fixed extents on every device.
    pub force_static: bool,
    /// Compiled models are not shared between partitions of this process.
    pub disable_cache: bool,
    /// Cache inputs always have all cells.
    pub disable_slice: bool,
    /// Attention as products and softmax; unset: on GPU.
    pub manual_attention: Option<bool>,
    /// Both of the following unless they are set.
    pub memory_optimize: bool,
    /// Pages of the file are given back while weights are taken in; unset: as `memory_optimize`.
    pub reduce_compile_memory: Option<bool>,
    /// Pages of the file are given back once the model is compiled; unset: on GPU with `memory_optimize`.
    pub release_weights: Option<bool>,
    /// Folder for a file that constants lie in, so that the system can drop their pages; unset: `/var/tmp` where
    /// memory is saved.
    pub spill_folder: Option<PathBuf>,
    /// Times are logged.
    pub profiling: bool,
    /// The segment is written to `cgraph_ov.txt`.
    pub dump_graph: bool,
    /// The translation is written to `model_*.xml`.
    pub dump_ir: bool,
    /// Inputs are logged.
    pub debug_input: bool,
    /// Outputs are logged.
    pub debug_output: bool,
    /// Addresses of inputs are logged once.
    pub print_addresses: bool,
    /// Operations that cannot be translated are logged.
    pub log_unsupported: bool,
    /// Properties of the plugin, passed on as they are.
    pub properties: Vec<(String, String)>,
    /// What is wrong with values, a line each.
    pub complaints: Vec<String>,
}

/// What a variable's value is, and where it goes.
enum Value {
    /// Any text that is not empty.
    Text(fn(&mut Settings, String)),
    /// On if it is a positive integer.
    Switch(fn(&mut Settings, bool)),
    /// A positive integer.
    Count(fn(&mut Settings, u32)),
    /// `KEY=VALUE,…`
    Pairs(fn(&mut Settings, Vec<(String, String)>)),
}

/// One variable.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it does, for the documentation.
    pub effect: &'static str,
    value: Value,
}

const fn row(name: &'static str, effect: &'static str, value: Value) -> Variable {
    Variable { name, effect, value }
}

use Value::{Count, Pairs, Switch, Text};

/// All variables.
pub const VARIABLES: &[Variable] = &[
    row("GGML_OPENVINO_DEVICE", "device: CPU (default), GPU, GPU.0, NPU", Text(|s, v| s.device = Some(v))),
    row(
        "GGML_OPENVINO_CACHE_DIR",
        "folder of the plugin's own cache of compiled models",
        Text(|s, v| s.cache_folder = Some(v.into())),
    ),
    row(
        "GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR",
        "folder of compiled models; a hit skips constants and compilation",
        Text(|s, v| s.compiled_model_folder = Some(v.into())),
    ),
    row(
        "GGML_OPENVINO_PREFILL_CHUNK_SIZE",
        "tokens of a prompt per run with fixed extents (256); models whose rows see later ones take a whole step",
        Count(|s, v| s.prefill_chunk = Some(v)),
    ),
    row(
        "GGML_OPENVINO_NPU_COMPILE_CONFIG",
        "passed on as NPU_COMPILATION_MODE_PARAMS",
        Text(|s, v| s.npu_compile_config = Some(v)),
    ),
    row(
        "GGML_OPENVINO_STATEFUL_EXECUTION",
        "keys and values are kept by the model",
        Switch(|s, v| s.stateful = v),
    ),
    row(
        "GGML_OPENVINO_FORCE_STATIC",
        "fixed extents, as on NPU, on every device",
        Switch(|s, v| s.force_static = v),
    ),
    row(
        "GGML_OPENVINO_DISABLE_CACHE",
        "no sharing of compiled models within the process",
        Switch(|s, v| s.disable_cache = v),
    ),
    row(
        "GGML_OPENVINO_DISABLE_KV_SLICE",
        "cache inputs always have all cells (where the host keeps keys and values)",
        Switch(|s, v| s.disable_slice = v),
    ),
    row(
        "GGML_OPENVINO_MANUAL_GQA_ATTN",
        "attention as products and softmax, but for pages (default: on GPU where the host keeps keys and values)",
        Switch(|s, v| s.manual_attention = Some(v)),
    ),
    row(
        "GGML_OPENVINO_MEMORY_OPTIMIZE",
        "the next two, unless they are set; weights no larger than in the file, no model of their own for prompts",
        Switch(|s, v| s.memory_optimize = v),
    ),
    row(
        "GGML_OPENVINO_REDUCE_COMPILE_MEM",
        "gives pages of the file back while constants are made",
        Switch(|s, v| s.reduce_compile_memory = Some(v)),
    ),
    row(
        "GGML_OPENVINO_RELEASE_WEIGHTS",
        "gives pages of the file back once the model is compiled (default: on GPU with the switch above)",
        Switch(|s, v| s.release_weights = Some(v)),
    ),
    row(
        "GGML_OPENVINO_SPILL_DIR",
        "folder of a file without a name that constants lie in (default where memory is saved: `/var/tmp`)",
        Text(|s, v| s.spill_folder = Some(v.into())),
    ),
    row(
        "GGML_OPENVINO_PROFILING",
        "logs times of translation, compilation and runs",
        Switch(|s, v| s.profiling = v),
    ),
    row("GGML_OPENVINO_DUMP_CGRAPH", "writes the graph to cgraph_ov.txt", Switch(|s, v| s.dump_graph = v)),
    row("GGML_OPENVINO_DUMP_IR", "writes the translation to model_*.xml", Switch(|s, v| s.dump_ir = v)),
    row("GGML_OPENVINO_DEBUG_INPUT", "logs inputs of every run", Switch(|s, v| s.debug_input = v)),
    row("GGML_OPENVINO_DEBUG_OUTPUT", "logs outputs of every run", Switch(|s, v| s.debug_output = v)),
    row(
        "GGML_OPENVINO_PRINT_CGRAPH_TENSOR_ADDRESS",
        "logs addresses of inputs once",
        Switch(|s, v| s.print_addresses = v),
    ),
    row(
        "GGML_OPENVINO_LOG_UNSUPPORTED_OPS",
        "logs operations that run elsewhere, and why",
        Switch(|s, v| s.log_unsupported = v),
    ),
    row("GGML_OPENVINO_PROPERTIES", "KEY=VALUE,… passed on to the plugin", Pairs(|s, v| s.properties = v)),
];

/// Variables of llama.cpp's back end that have no meaning here.
const WITHOUT_EFFECT: &[&str] = &[
    "GGML_OPENVINO_DEBUG_NODE",
    "GGML_OPENVINO_DISABLE_KV_STATE_RELAYOUT",
    "GGML_OPENVINO_DISABLE_REMOTE_OUTPUTS",
    "GGML_OPENVINO_ENABLE_CACHE",
    "GGML_OPENVINO_ENABLE_FALLBACK",
    "GGML_OPENVINO_LOG_SWA_LAYERS",
    "GGML_OPENVINO_MOE_OP",
    "GGML_OPENVINO_NATIVE_SOFTPLUS",
    "GGML_OPENVINO_REQUANT_KQUANT",
];

impl Variable {
    /// Puts a value into the settings; an error says what is wrong with it.
    fn set(&self, settings: &mut Settings, value: &str) -> Result<(), String> {
        let text = value.trim();
        match self.value {
            Text(_) if text.is_empty() => {}
            Text(set) => set(settings, text.to_owned()),
            Switch(set) => {
                let number = text.parse::<i64>();
                set(settings, number.as_ref().is_ok_and(|number| *number > 0));
                if number.is_err() && !text.is_empty() {
                    return Err("a positive integer means on; this counts as off".to_owned());
                }
            }
            Count(set) => match text.parse::<u32>() {
                Ok(count) if count > 0 => set(settings, count),
                _ => return Err("that is no positive integer; the default is used".to_owned()),
            },
            Pairs(set) => {
                let (pairs, others): (Vec<_>, Vec<_>) = text
                    .split(',')
                    .filter(|part| !part.trim().is_empty())
                    .map(|part| part.split_once('=').ok_or(part))
                    .partition(Result::is_ok);
                let owned = |(key, value): (&str, &str)| (key.trim().to_owned(), value.trim().to_owned());
                set(settings, pairs.into_iter().flatten().map(owned).collect());
                if let Some(other) = others.into_iter().find_map(Result::err) {
                    return Err(format!("'{other}' is not KEY=VALUE and is left out"));
                }
            }
        }
        Ok(())
    }
}

/// Tokens of a prompt chunk unless a variable says otherwise.
const PREFILL_CHUNK: u32 = 256;

impl Settings {
    /// Reads all variables.
    pub fn read(lookup: Lookup<'_>) -> Self {
        let mut settings = Self::default();
        for variable in VARIABLES {
            if let Some(value) = lookup(variable.name)
                && let Err(reason) = variable.set(&mut settings, &value)
            {
                settings.complaints.push(format!("{}={value}: {reason}", variable.name));
            }
        }
        for name in WITHOUT_EFFECT {
            if lookup(name).is_some() {
                settings.complaints.push(format!("{name} has no effect here"));
            }
        }
        settings
    }

    /// Lines about variables that are on and have no effect where keys and values are kept in this form.
    pub(crate) fn without_effect(&self, form: CacheForm) -> Vec<String> {
        let (place, can_be_manual) = match form {
            CacheForm::Host => return Vec::new(),
            CacheForm::Paged => {
                ("keys and values in pages (PUNA_OPENVINO_SHIM=0 leaves them to the host)", false)
            }
            CacheForm::Stateful => ("keys and values that the model keeps", true),
        };
        let manual = ("GGML_OPENVINO_MANUAL_GQA_ATTN", !can_be_manual && self.manual_attention == Some(true));
        let all = [manual, ("GGML_OPENVINO_DISABLE_KV_SLICE", self.disable_slice)];
        let on = all.into_iter().filter(|(_, is_on)| *is_on);
        on.map(|(name, _)| format!("{name} has no effect on {place}")).collect()
    }

    /// The device asked for, in upper case.
    pub fn device(&self) -> String {
        self.device.as_deref().unwrap_or("CPU").to_ascii_uppercase()
    }

    /// Whether extents are fixed on this device.
    pub fn is_static(&self, device: &str) -> bool {
        self.force_static || device.starts_with("NPU")
    }

    /// Tokens of a prompt per run with fixed extents.
    pub fn chunk(&self) -> u32 {
        self.prefill_chunk.unwrap_or(PREFILL_CHUNK)
    }

    /// Whether attention is written as products and softmax on this device.
    pub fn manual_attention(&self, device: &str) -> bool {
        self.manual_attention.unwrap_or(device.starts_with("GPU"))
    }

    /// Whether pages of the file are given back while loading.
    pub fn reduces_memory(&self) -> bool {
        self.reduce_compile_memory.unwrap_or(self.memory_optimize)
    }

    /// Whether the plugin turns activations into integers: on processors, unless the user says otherwise.
    pub fn quantises_activations(&self, device: &str) -> bool {
        let group = self.properties.iter().rev().find(|(key, _)| key == DYNAMIC_QUANTIZATION);
        device.starts_with("CPU") && group.is_none_or(|(_, group)| group != "0")
    }

    /// Kind of device, for the codings of weights. To save memory, weights are not written larger than they are in the file.
    pub fn kind(&self, device: &str) -> Kind {
        Kind::of(device, self.quantises_activations(device) && !self.memory_optimize)
    }

    /// Whether weights are given back once a model is compiled.
    pub fn releases_weights(&self, device: &str) -> bool {
        self.release_weights.unwrap_or(self.memory_optimize && device.starts_with("GPU"))
    }

    /// Whether prompts get a model of their own, in bf16. It pays where the processor multiplies tiles of such numbers,
    /// and costs a second copy of the weights.
    pub fn has_prompt_model(&self, device: &str, tiles: bool) -> bool {
        let is_set = |key: &str| self.properties.iter().any(|(other, _)| other == key);
        device.starts_with("CPU")
            && tiles
            && !self.memory_optimize
            && !self.is_static(device)
            && self.quantises_activations(device)
            && !is_set("INFERENCE_PRECISION_HINT")
    }

    /// Properties of the model for prompts, given those of the other.
    pub fn prompt_properties(properties: &[(String, String)]) -> Vec<(String, String)> {
        let bf16 = |key: &str| key == "INFERENCE_PRECISION_HINT" || key.ends_with("_CACHE_PRECISION");
        let change = |(key, value): &(String, String)| {
            (key.clone(), if bf16(key) { "bf16".to_owned() } else { value.clone() })
        };
        properties.iter().map(change).collect()
    }

    /// Where constants lie, if not in memory alone.
    pub fn spill_folder(&self) -> Option<PathBuf> {
        let usual =
            || self.reduces_memory().then(|| PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir());
        self.spill_folder.clone().or_else(usual)
    }

    /// Properties that a model is compiled with. Those of the user come last and win.
    pub fn properties(&self, device: &str, threads: usize) -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: &str| {
            all.retain(|(other, _)| other != key);
            all.push((key.to_owned(), value.to_owned()));
        };
        set("PERFORMANCE_HINT", "LATENCY");
        if device.starts_with("CPU") {
            set("INFERENCE_NUM_THREADS", &threads.to_string());
            set("NUM_STREAMS", "1");
            // Integers of activations times integers of weights: the fastest for few rows.
            set("INFERENCE_PRECISION_HINT", "f32");
            set(DYNAMIC_QUANTIZATION, "32");
        }
        if device.starts_with("NPU") {
            for (key, value) in NPU {
                set(key, value);
            }
            if let Some(config) = &self.npu_compile_config {
                set("NPU_COMPILATION_MODE_PARAMS", config);
            }
        }
        if let Some(folder) = &self.cache_folder {
            let folder = folder.to_string_lossy();
            match device.starts_with("NPU") {
                true => set("NPUW_CACHE_DIR", &folder),
                false => {
                    set("CACHE_DIR", &folder);
                    set("CACHE_MODE", "OPTIMIZE_SIZE");
                }
            }
        }
        if self.profiling {
            set("PERF_COUNT", "YES");
        }
        for (key, value) in &self.properties {
            set(key, value);
        }
        all
    }
}

/// Whether a property changes only how a compiled model runs. It is set again when a model is read back.
pub(crate) fn is_for_runs(key: &str) -> bool {
    ["INFERENCE_NUM_THREADS", "PERF_COUNT"].contains(&key)
}

/// Elements of an activation that share a scale; 0 leaves activations as they are.
const DYNAMIC_QUANTIZATION: &str = "DYNAMIC_QUANTIZATION_GROUP_SIZE";

/// How models are compiled for an NPU.
const NPU: &[(&str, &str)] = &[
    ("NPU_COMPILER_DYNAMIC_QUANTIZATION", "YES"),
    ("NPU_USE_NPUW", "YES"),
    ("NPUW_DEVICES", "NPU"),
    ("NPUW_FOLD", "YES"),
    ("NPUW_WEIGHTS_BANK", "shared"),
    ("NPUW_FUNCALL_FOR_ALL", "YES"),
    ("NPUW_FUNCALL_ASYNC", "YES"),
    ("NPUW_DQ", "YES"),
    ("NPUW_DQ_FULL", "NO"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Settings {
        Settings::read(&|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn every_variable_changes_the_settings() {
        for variable in VARIABLES {
            let value = if variable.name.ends_with("PROPERTIES") { "A=1" } else { "1" };
            assert_ne!(read(&[(variable.name, value)]), Settings::default(), "{}", variable.name);
        }
    }

    #[test]
    fn only_positive_integers_switch_on() {
        for (value, expected) in
            [("1", true), (" 7 ", true), ("0", false), ("-1", false), ("yes", false), ("", false)]
        {
            assert_eq!(read(&[("GGML_OPENVINO_PROFILING", value)]).profiling, expected, "{value:?}");
        }
        for (value, expected) in [("64", 64), ("0", 256), ("x", 256), ("-3", 256)] {
            assert_eq!(read(&[("GGML_OPENVINO_PREFILL_CHUNK_SIZE", value)]).chunk(), expected, "{value:?}");
        }
    }

    #[test]
    fn wrong_values_are_told() {
        for (name, value, complaint) in [
            (
                "PROFILING",
                "yes",
                "GGML_OPENVINO_PROFILING=yes: a positive integer means on; this counts as off",
            ),
            ("PROFILING", "-1", ""),
            ("PROFILING", "", ""),
            (
                "PREFILL_CHUNK_SIZE",
                "0",
                "GGML_OPENVINO_PREFILL_CHUNK_SIZE=0: that is no positive integer; the default is used",
            ),
            (
                "PREFILL_CHUNK_SIZE",
                "99999999999",
                "GGML_OPENVINO_PREFILL_CHUNK_SIZE=99999999999: that is no positive integer; the default is used",
            ),
            ("PROPERTIES", "A=1,B", "GGML_OPENVINO_PROPERTIES=A=1,B: 'B' is not KEY=VALUE and is left out"),
            ("PROPERTIES", "A=1, B=2,", ""),
            ("REQUANT_KQUANT", "native", "GGML_OPENVINO_REQUANT_KQUANT has no effect here"),
        ] {
            let name = format!("GGML_OPENVINO_{name}");
            assert_eq!(read(&[(&name, value)]).complaints.join("; "), complaint);
        }
    }

    #[test]
    fn defaults_depend_on_the_device() {
        let settings = Settings::default();
        assert_eq!(settings.device(), "CPU");
        assert!(settings.manual_attention("GPU.1") && !settings.manual_attention("CPU"));
        assert!(!read(&[("GGML_OPENVINO_MANUAL_GQA_ATTN", "0")]).manual_attention("GPU"));
        assert!(settings.is_static("NPU") && !settings.is_static("CPU"));
        assert!(read(&[("GGML_OPENVINO_FORCE_STATIC", "1")]).is_static("CPU"));
        let umbrella = read(&[("GGML_OPENVINO_MEMORY_OPTIMIZE", "1")]);
        assert!(umbrella.reduces_memory());
        let set = [("GGML_OPENVINO_MEMORY_OPTIMIZE", "1"), ("GGML_OPENVINO_REDUCE_COMPILE_MEM", "0")];
        assert!(!read(&set).reduces_memory());
    }

    #[test]
    fn variables_without_effect_in_a_form_are_told() {
        let names = ["GGML_OPENVINO_MANUAL_GQA_ATTN", "GGML_OPENVINO_DISABLE_KV_SLICE"];
        let on = read(&names.map(|name| (name, "1")));
        let off = read(&names.map(|name| (name, "0")));
        for (form, expected) in [(CacheForm::Host, 0), (CacheForm::Paged, 2), (CacheForm::Stateful, 1)] {
            let told = on.without_effect(form);
            assert_eq!(told.len(), expected, "{form:?}");
            assert!(told.iter().all(|line| line.contains(" has no effect on keys and values ")), "{told:?}");
            assert!(off.without_effect(form).is_empty());
        }
    }

    #[test]
    fn prompts_have_a_model_of_their_own_where_it_pays() {
        let settings = Settings::default();
        assert!(settings.has_prompt_model("CPU", true));
        assert!(!settings.has_prompt_model("CPU", false) && !settings.has_prompt_model("GPU", true));
        for (name, value) in [
            ("GGML_OPENVINO_MEMORY_OPTIMIZE", "1"),
            ("GGML_OPENVINO_FORCE_STATIC", "1"),
            ("GGML_OPENVINO_PROPERTIES", "INFERENCE_PRECISION_HINT=f32"),
            ("GGML_OPENVINO_PROPERTIES", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0"),
        ] {
            assert!(!read(&[(name, value)]).has_prompt_model("CPU", true), "{name}={value}");
        }
        let few = settings.properties("CPU", 2);
        let many = Settings::prompt_properties(&few);
        let hint = |all: &[(String, String)]| {
            all.iter().find(|(key, _)| key == "INFERENCE_PRECISION_HINT").map(|(_, value)| value.clone())
        };
        assert_eq!((hint(&few).as_deref(), hint(&many).as_deref()), (Some("f32"), Some("bf16")));
    }

    #[test]
    fn weights_are_released_on_graphics_or_when_asked_for() {
        let optimize = ("GGML_OPENVINO_MEMORY_OPTIMIZE", "1");
        assert!(read(&[optimize]).releases_weights("GPU.0") && !read(&[optimize]).releases_weights("CPU"));
        assert!(read(&[("GGML_OPENVINO_RELEASE_WEIGHTS", "1")]).releases_weights("CPU"));
        assert!(!read(&[optimize, ("GGML_OPENVINO_RELEASE_WEIGHTS", "0")]).releases_weights("GPU"));
    }

    #[test]
    fn properties_follow_the_device_and_the_user_wins() {
        let has = |all: &[(String, String)], key: &str, value: &str| {
            all.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect::<Vec<_>>() == [value]
        };
        let cpu = Settings::default().properties("CPU", 3);
        assert!(has(&cpu, "INFERENCE_NUM_THREADS", "3") && has(&cpu, DYNAMIC_QUANTIZATION, "32"));
        assert_eq!(Settings::default().kind("CPU"), Kind::CpuDynamic);
        assert_eq!(read(&[("GGML_OPENVINO_MEMORY_OPTIMIZE", "1")]).kind("CPU"), Kind::Cpu);
        let exact = read(&[("GGML_OPENVINO_PROPERTIES", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0")]);
        assert_eq!(exact.kind("CPU"), Kind::Cpu);
        let npu = read(&[
            ("GGML_OPENVINO_NPU_COMPILE_CONFIG", "optimization-level=3"),
            ("GGML_OPENVINO_CACHE_DIR", "/c"),
        ]);
        let npu = npu.properties("NPU", 3);
        assert!(has(&npu, "NPUW_FOLD", "YES") && has(&npu, "NPUW_CACHE_DIR", "/c"));
        assert!(has(&npu, "NPU_COMPILATION_MODE_PARAMS", "optimization-level=3"));
        let set = "INFERENCE_NUM_THREADS=1, KV_CACHE_PRECISION=f32,nonsense";
        let own = read(&[("GGML_OPENVINO_PROPERTIES", set), ("GGML_OPENVINO_CACHE_DIR", "/c")]);
        let own = own.properties("CPU", 3);
        assert!(has(&own, "INFERENCE_NUM_THREADS", "1") && has(&own, "KV_CACHE_PRECISION", "f32"));
        assert!(has(&own, "CACHE_DIR", "/c") && has(&own, "CACHE_MODE", "OPTIMIZE_SIZE"));
    }
}
