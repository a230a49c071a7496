//! Results of `bench` as a table, CSV, JSON or SQL, with the columns that scripts expect.

use puna_flags::bench::{Bench, OutputFormat, Settings, Test};

/// The machine, the same for all rows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Machine {
    /// Product name of the processor.
    pub cpu_info: String,
    /// Product names of other devices.
    pub gpu_info: String,
    /// Names of the back ends that run the tests.
    pub backends: String,
    /// Source revision of this program.
    pub build_commit: String,
    /// Its number.
    pub build_number: u32,
}

/// The model of a row.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ModelFacts {
    /// Architecture, size class and number format: `llama 1B Q4_K - Medium`.
    pub description: String,
    /// Bytes of all tensors.
    pub size: u64,
    /// Elements of all tensors.
    pub n_params: u64,
    /// Bytes of the tensors that one token reads whole.
    pub token_bytes: u64,
}

/// One measured test.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The machine.
    pub machine: Machine,
    /// The model.
    pub model: ModelFacts,
    /// What was measured.
    pub test: Test,
    /// Start in UTC, `2026-01-31T12:00:00Z`.
    pub test_time: String,
    /// Nanoseconds of each repetition.
    pub samples_ns: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Bool,
    Int,
    Float,
}

/// A column: its name, its type, and how a row fills it.
struct Column {
    name: &'static str,
    kind: Kind,
    value: fn(&Row) -> String,
}

const fn column(name: &'static str, kind: Kind, value: fn(&Row) -> String) -> Column {
    Column { name, kind, value }
}

fn bit(value: bool) -> String {
    u8::from(value).to_string()
}

macro_rules! setting {
    ($name:ident, Bool) => {
        column(stringify!($name), Kind::Bool, |row| bit(row.test.settings.$name))
    };
    ($name:ident, $kind:ident) => {
        column(stringify!($name), Kind::$kind, |row| row.test.settings.$name.to_string())
    };
}

/// All columns in the order of CSV, JSON and SQL.
static COLUMNS: &[Column] = &[
    column("build_commit", Kind::Text, |row| row.machine.build_commit.clone()),
    column("build_number", Kind::Int, |row| row.machine.build_number.to_string()),
    column("cpu_info", Kind::Text, |row| row.machine.cpu_info.clone()),
    column("gpu_info", Kind::Text, |row| row.machine.gpu_info.clone()),
    column("backends", Kind::Text, |row| row.machine.backends.clone()),
    column("model_filename", Kind::Text, |row| row.test.settings.model.clone()),
    column("model_type", Kind::Text, |row| row.model.description.clone()),
    column("model_size", Kind::Int, |row| row.model.size.to_string()),
    column("model_n_params", Kind::Int, |row| row.model.n_params.to_string()),
    setting!(n_batch, Int),
    setting!(n_ubatch, Int),
    setting!(n_threads, Int),
    setting!(cpu_mask, Text),
    setting!(cpu_strict, Bool),
    setting!(poll, Int),
    setting!(type_k, Text),
    setting!(type_v, Text),
    setting!(n_gpu_layers, Int),
    setting!(n_cpu_moe, Int),
    setting!(split_mode, Text),
    setting!(main_gpu, Int),
    setting!(no_kv_offload, Bool),
    setting!(flash_attn, Int),
    setting!(devices, Text),
    column("tensor_split", Kind::Text, |row| shares(&row.test.settings.tensor_split)),
    setting!(tensor_buft_overrides, Text),
    setting!(load_mode, Text),
    setting!(lazy_mode, Text),
    setting!(embeddings, Bool),
    column("no_op_offload", Kind::Int, |row| bit(row.test.settings.no_op_offload)),
    setting!(no_host, Bool),
    setting!(repack, Bool),
    setting!(fit_target, Int),
    setting!(fit_min_ctx, Int),
    column("n_prompt", Kind::Int, |row| row.test.n_prompt.to_string()),
    column("n_gen", Kind::Int, |row| row.test.n_gen.to_string()),
    setting!(n_depth, Int),
    column("test_time", Kind::Text, |row| row.test_time.clone()),
    column("avg_ns", Kind::Int, |row| format!("{:.0}", mean(&nanoseconds(row)).floor())),
    column("stddev_ns", Kind::Int, |row| format!("{:.0}", deviation(&nanoseconds(row)).floor())),
    column("avg_ts", Kind::Float, |row| format!("{:.6}", mean(&row.tokens_per_second()))),
    column("stddev_ts", Kind::Float, |row| format!("{:.6}", deviation(&row.tokens_per_second()))),
];

/// Settings that the table for people shows when they are not the default, with their headings and widths
/// (negative: left-aligned).
static SHOWN: &[(&str, &str, i32)] = &[
    ("n_cpu_moe", "n_cpu_moe", 10),
    ("n_threads", "threads", 7),
    ("cpu_mask", "cpu_mask", -10),
    ("cpu_strict", "cpu_strict", 10),
    ("poll", "poll", 10),
    ("n_batch", "n_batch", 7),
    ("n_ubatch", "n_ubatch", 8),
    ("type_k", "type_k", 6),
    ("type_v", "type_v", 6),
    ("main_gpu", "main_gpu", 10),
    ("split_mode", "sm", 6),
    ("no_kv_offload", "nkvo", 13),
    ("flash_attn", "fa", 3),
    ("devices", "dev", -12),
    ("tensor_split", "ts", -12),
    ("tensor_buft_overrides", "ot", -21),
    ("load_mode", "lm", 10),
    ("lazy_mode", "lazy_mode", -10),
    ("embeddings", "embd", 10),
    ("no_op_offload", "nopo", 4),
    ("no_host", "noh", 4),
    ("repack", "rpk", 3),
    ("fit_target", "fitt", 10),
    ("fit_min_ctx", "fitc", 11),
];

impl Row {
    /// Speed of each repetition: all tokens of the test over its time.
    pub fn tokens_per_second(&self) -> Vec<f64> {
        let tokens = f64::from(self.test.n_prompt) + f64::from(self.test.n_gen);
        self.samples_ns.iter().map(|time| 1e9 * tokens / (*time).max(1) as f64).collect()
    }

    /// Short name of the test: `pp512`, `tg128`, `pp512+tg128`, with ` @ d4096` for a depth.
    pub fn test_name(&self) -> String {
        let Test { n_prompt, n_gen, settings } = &self.test;
        let depth = if settings.n_depth > 0 { format!(" @ d{}", settings.n_depth) } else { String::new() };
        match (n_prompt, n_gen) {
            (_, 0) => format!("pp{n_prompt}{depth}"),
            (0, _) => format!("tg{n_gen}{depth}"),
            _ => format!("pp{n_prompt}+tg{n_gen}{depth}"),
        }
    }
}

fn nanoseconds(row: &Row) -> Vec<f64> {
    row.samples_ns.iter().map(|time| *time as f64).collect()
}

/// Arithmetic mean; 0 for no values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Standard deviation of a sample; 0 for fewer than two values.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Shares up to the last one above 0.
fn shares(values: &[f32]) -> String {
    let last = values.iter().rposition(|value| *value > 0.0).unwrap_or(0);
    let shown = values.get(..=last).unwrap_or(&[0.0]);
    shown.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join("/")
}

/// Writes rows in one format.
pub struct Printer {
    format: OutputFormat,
    machine: Machine,
    shown: Vec<&'static (&'static str, &'static str, i32)>,
    rows: usize,
}

impl Printer {
    /// For the tests of `bench`; `defaults` are the settings without flags.
    pub fn new(format: OutputFormat, bench: &Bench, defaults: &Settings, machine: &Machine) -> Self {
        let changed = bench.lists.changed(defaults);
        let on_cpu = machine.backends == "CPU";
        let visible = |name: &str| changed.contains(&name) || (name == "n_threads" && on_cpu);
        let shown = SHOWN.iter().filter(|(name, ..)| visible(name)).collect();
        Self { format, machine: machine.clone(), shown, rows: 0 }
    }

    /// What comes before all rows.
    pub fn header(&self) -> String {
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        match self.format {
            OutputFormat::Csv => names.join(",") + "\n",
            OutputFormat::Json => "[\n".to_owned(),
            OutputFormat::Jsonl => String::new(),
            OutputFormat::Sql => {
                let columns: Vec<String> = COLUMNS
                    .iter()
                    .map(|column| format!("  {} {}", column.name, sql_type(column.kind)))
                    .collect();
                format!("CREATE TABLE IF NOT EXISTS llama_bench (\n{}\n);\n\n", columns.join(",\n"))
            }
            OutputFormat::Markdown => {
                let fields = self.fields(None);
                let names: String =
                    fields.iter().map(|(name, width)| format!(" {} |", padded(name, *width))).collect();
                let line = |(_, width): &(String, i32)| {
                    let end = if *width > 0 { ':' } else { '-' };
                    format!(" {}{end} |", "-".repeat(width.unsigned_abs() as usize - 1))
                };
                format!("|{names}\n|{}\n", fields.iter().map(line).collect::<String>())
            }
        }
    }

    /// One row.
    pub fn row(&mut self, row: &Row) -> String {
        let values: Vec<String> = COLUMNS.iter().map(|column| (column.value)(row)).collect();
        self.rows += 1;
        match self.format {
            OutputFormat::Csv => {
                let quoted: Vec<String> =
                    values.iter().map(|value| format!("\"{}\"", value.replace('"', "\"\""))).collect();
                quoted.join(",") + "\n"
            }
            OutputFormat::Json => {
                let between = if self.rows > 1 { ",\n" } else { "" };
                let fields: Vec<String> =
                    json_fields(row, &values).iter().map(|field| format!("    {field}")).collect();
                format!("{between}  {{\n{}\n  }}", fields.join(",\n"))
            }
            OutputFormat::Jsonl => format!("{{{}}}\n", json_fields(row, &values).join(", ")),
            OutputFormat::Sql => {
                let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
                let quoted: Vec<String> =
                    values.iter().map(|value| format!("'{}'", value.replace('\'', "''"))).collect();
                format!("INSERT INTO llama_bench ({}) VALUES ({});\n", names.join(", "), quoted.join(", "))
            }
            OutputFormat::Markdown => {
                let fields = self.fields(Some(row));
                let cells: String =
                    fields.iter().map(|(value, width)| format!(" {} |", padded(value, *width))).collect();
                format!("|{cells}\n")
            }
        }
    }

    /// What comes after all rows.
    pub fn footer(&self) -> String {
        match self.format {
            OutputFormat::Json => "\n]\n".to_owned(),
            OutputFormat::Markdown => {
                format!("\nbuild: {} ({})\n", self.machine.build_commit, self.machine.build_number)
            }
            _ => String::new(),
        }
    }

    /// Cells of the table for people and their widths: the headings, or the values of a row.
    fn fields(&self, row: Option<&Row>) -> Vec<(String, i32)> {
        let cell = |name: &str, width: i32, value: &dyn Fn(&Row) -> String| {
            (row.map_or_else(|| name.to_owned(), value), width)
        };
        let mut fields = vec![
            cell("model", -30, &|row| row.model.description.clone()),
            cell("size", 10, &|row| binary_size(row.model.size)),
            cell("params", 10, &|row| parameters(row.model.n_params)),
            cell("backend", -10, &|row| row.machine.backends.clone()),
        ];
        if self.machine.backends != "CPU" {
            fields.push(cell("ngl", 3, &|row| row.test.settings.n_gpu_layers.to_string()));
        }
        for (name, heading, width) in &self.shown {
            let value = |row: &Row| {
                let column = COLUMNS.iter().find(|column| column.name == *name);
                column.map_or_else(String::new, |column| (column.value)(row))
            };
            fields.push(cell(heading, *width, &value));
        }
        fields.push(cell("test", 15, &Row::test_name));
        let speed = |row: &Row| {
            let speeds = row.tokens_per_second();
            format!("{:.2} ± {:.2}", mean(&speeds), deviation(&speeds))
        };
        fields.push(cell("t/s", 20, &speed));
        fields
    }
}

fn padded(text: &str, width: i32) -> String {
    let size = width.unsigned_abs() as usize;
    if width < 0 { format!("{text:<size$}") } else { format!("{text:>size$}") }
}

fn binary_size(bytes: u64) -> String {
    let mib = bytes as f64 / 1024.0 / 1024.0;
    if bytes < 1 << 30 { format!("{mib:.2} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

fn parameters(count: u64) -> String {
    if count < 1_000_000_000 {
        format!("{:.2} M", count as f64 / 1e6)
    } else {
        format!("{:.2} B", count as f64 / 1e9)
    }
}

fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "TEXT",
        Kind::Bool | Kind::Int => "INTEGER",
        Kind::Float => "REAL",
    }
}

fn json_fields(row: &Row, values: &[String]) -> Vec<String> {
    let value = |column: &Column, value: &String| match column.kind {
        Kind::Text => serde_json::Value::from(value.as_str()).to_string(),
        Kind::Bool => (value != "0").to_string(),
        Kind::Int | Kind::Float => value.clone(),
    };
    let named = COLUMNS
        .iter()
        .zip(values)
        .map(|(column, text)| format!("\"{}\": {}", column.name, value(column, text)));
    let mut fields: Vec<String> = named.collect();
    let times: Vec<String> = row.samples_ns.iter().map(u64::to_string).collect();
    let speeds: Vec<String> = row.tokens_per_second().iter().map(|speed| format!("{speed:.6}")).collect();
    fields.push(format!("\"samples_ns\": [ {} ]", times.join(", ")));
    fields.push(format!("\"samples_ts\": [ {} ]", speeds.join(", ")));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &str = "build_commit, build_number, cpu_info, gpu_info, backends, model_filename, model_type, \
        model_size, model_n_params, n_batch, n_ubatch, n_threads, cpu_mask, cpu_strict, poll, type_k, type_v, \
        n_gpu_layers, n_cpu_moe, split_mode, main_gpu, no_kv_offload, flash_attn, devices, tensor_split, \
        tensor_buft_overrides, load_mode, lazy_mode, embeddings, no_op_offload, no_host, repack, fit_target, \
        fit_min_ctx, n_prompt, n_gen, n_depth, test_time, avg_ns, stddev_ns, avg_ts, stddev_ts";

    fn machine() -> Machine {
        let build_commit = "abc".to_owned();
        Machine {
            cpu_info: "a \"fast\" one".into(),
            backends: "CPU".into(),
            build_commit,
            build_number: 7,
            ..Machine::default()
        }
    }

    fn example() -> Row {
        let settings = Settings { model: "it's.gguf".into(), n_threads: 2, ..Settings::default() };
        Row {
            machine: machine(),
            model: ModelFacts {
                description: "llama 1B Q4_0".into(),
                size: 700 << 20,
                n_params: 1_230_000_000,
                token_bytes: 700 << 20,
            },
            test: Test { settings, n_prompt: 512, n_gen: 0 },
            test_time: "2026-01-02T03:04:05Z".into(),
            samples_ns: vec![1_000_000_000, 2_000_000_000],
        }
    }

    fn printed(format: OutputFormat, bench: &Bench, rows: &[Row]) -> String {
        let mut printer = Printer::new(format, bench, &Settings::default(), &machine());
        let mut text = printer.header();
        rows.iter().for_each(|row| text.push_str(&printer.row(row)));
        text + &printer.footer()
    }

    #[test]
    fn columns_are_those_that_scripts_expect() {
        let names: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
        assert_eq!(names.join(", "), NAMES);
        for (name, ..) in SHOWN {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn the_table_for_people() {
        let mut bench = Bench::default();
        let table = printed(OutputFormat::Markdown, &bench, &[example()]);
        let expected = "\
| model                          |       size |     params | backend    | threads |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |
| llama 1B Q4_0                  | 700.00 MiB |     1.23 B | CPU        |       2 |           pp512 |      384.00 ± 181.02 |

build: abc (7)
";
        assert_eq!(table, expected);
        bench.lists.flash_attn = vec![1];
        bench.lists.type_k = vec!["q8_0"];
        let header = printed(OutputFormat::Markdown, &bench, &[]);
        assert!(header.contains("| threads | type_k |  fa |            test |"), "{header}");
    }

    #[test]
    fn csv_and_sql_quote() {
        let csv = printed(OutputFormat::Csv, &Bench::default(), &[example()]);
        let mut lines = csv.lines();
        assert_eq!(lines.next().unwrap(), NAMES.replace(", ", ","));
        let row = lines.next().unwrap();
        assert!(row.starts_with("\"abc\",\"7\",\"a \"\"fast\"\" one\",\"\",\"CPU\",\"it's.gguf\""), "{row}");
        assert!(row.ends_with("\"1500000000\",\"707106781\",\"384.000000\",\"181.019336\""), "{row}");
        let sql = printed(OutputFormat::Sql, &Bench::default(), &[example()]);
        assert!(sql.starts_with(
            "CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n  build_number INTEGER,\n"
        ));
        assert!(sql.contains("  stddev_ts REAL\n);\n\nINSERT INTO llama_bench (build_commit, "), "{sql}");
        assert!(sql.contains("'it''s.gguf'"));
    }

    #[test]
    fn json_is_json() {
        let rows = [example(), example()];
        let text = printed(OutputFormat::Json, &Bench::default(), &rows);
        let all: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text).unwrap();
        assert_eq!(all.len(), 2);
        let names: Vec<_> = all[1].keys().cloned().collect();
        assert_eq!(names.join(", "), format!("{NAMES}, samples_ns, samples_ts"));
        assert_eq!(all[0]["cpu_strict"], false);
        assert_eq!(all[0]["flash_attn"], -1);
        assert_eq!(all[0]["samples_ns"], serde_json::json!([1_000_000_000, 2_000_000_000]));
        assert_eq!(printed(OutputFormat::Json, &Bench::default(), &[]), "[\n\n]\n");
        let lines = printed(OutputFormat::Jsonl, &Bench::default(), &rows);
        assert_eq!(lines.lines().count(), 2);
        for line in lines.lines() {
            let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            assert_eq!(row, all[0]);
        }
    }

    #[test]
    fn names_of_tests_and_shares() {
        let mut row = example();
        row.test.n_gen = 4;
        row.test.settings.n_depth = 9;
        assert_eq!(row.test_name(), "pp512+tg4 @ d9");
        row.test.n_prompt = 0;
        assert_eq!(row.test_name(), "tg4 @ d9");
        assert_eq!(shares(&[]), "0.00");
        assert_eq!(shares(&[3.0, 1.0, 0.0]), "3.00/1.00");
    }
}
