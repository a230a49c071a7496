//! Counters, and the table from which `/metrics` is written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use puna_engine::{Meters, Timings};

/// Counters since the start, and since the last look.
#[derive(Default)]
pub struct Metrics {
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    prompt_time: AtomicU64,
    generated_tokens: AtomicU64,
    generation_time: AtomicU64,
    longest: AtomicU64,
    guesses: AtomicU64,
    guessed_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    processing: AtomicU64,
    waiting: AtomicU64,
    steps: AtomicU64,
    shared_steps: AtomicU64,
    stored: AtomicU64,
    last_prompt: [AtomicU64; 2],
    last_generated: [AtomicU64; 2],
}

/// One metric.
pub struct MetricRow {
    /// Name without the prefix.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Its value.
    pub read: fn(&Metrics) -> f64,
}

/// Every metric. Gauges of speed cover the time since they were last read.
pub const METRICS: &[MetricRow] = &[
    MetricRow {
        name: "prompt_tokens_total",
        kind: "counter",
        help: "Prompt tokens evaluated",
        read: |metrics| count(&metrics.prompt_tokens),
    },
    MetricRow {
        name: "prompt_tokens_cached_total",
        kind: "counter",
        help: "Prompt tokens reused from the cache",
        read: |metrics| count(&metrics.cached_tokens),
    },
    MetricRow {
        name: "prompt_seconds_total",
        kind: "counter",
        help: "Time spent on prompts",
        read: |metrics| count(&metrics.prompt_time) / 1e6,
    },
    MetricRow {
        name: "tokens_predicted_total",
        kind: "counter",
        help: "Tokens generated",
        read: |metrics| count(&metrics.generated_tokens),
    },
    MetricRow {
        name: "tokens_predicted_seconds_total",
        kind: "counter",
        help: "Time spent on generation",
        read: |metrics| count(&metrics.generation_time) / 1e6,
    },
    MetricRow {
        name: "n_decode_total",
        kind: "counter",
        help: "Steps of the model",
        read: |metrics| count(&metrics.steps),
    },
    MetricRow {
        name: "n_tokens_max",
        kind: "counter",
        help: "Most tokens of one request, prompt included",
        read: |metrics| count(&metrics.longest),
    },
    MetricRow {
        name: "spec_decode_num_drafts_total",
        kind: "counter",
        help: "Guesses that were checked",
        read: |metrics| count(&metrics.guesses),
    },
    MetricRow {
        name: "spec_decode_num_draft_tokens_total",
        kind: "counter",
        help: "Tokens of these guesses",
        read: |metrics| count(&metrics.guessed_tokens),
    },
    MetricRow {
        name: "spec_decode_num_accepted_tokens_total",
        kind: "counter",
        help: "Tokens of these guesses that were right",
        read: |metrics| count(&metrics.accepted_tokens),
    },
    MetricRow {
        name: "prompt_tokens_seconds",
        kind: "gauge",
        help: "Prompt tokens per second",
        read: |metrics| rate(&metrics.prompt_tokens, &metrics.prompt_time, &metrics.last_prompt),
    },
    MetricRow {
        name: "predicted_tokens_seconds",
        kind: "gauge",
        help: "Generated tokens per second",
        read: |metrics| rate(&metrics.generated_tokens, &metrics.generation_time, &metrics.last_generated),
    },
    MetricRow {
        name: "requests_processing",
        kind: "gauge",
        help: "Requests that have a slot",
        read: |metrics| count(&metrics.processing),
    },
    MetricRow {
        name: "requests_deferred",
        kind: "gauge",
        help: "Requests that wait for a slot",
        read: |metrics| count(&metrics.waiting),
    },
    MetricRow {
        name: "n_busy_slots_per_decode",
        kind: "gauge",
        help: "Requests that shared a step, on average",
        read: |metrics| count(&metrics.shared_steps) / count(&metrics.steps).max(1.0),
    },
    MetricRow {
        name: "prompt_cache_bytes",
        kind: "gauge",
        help: "Memory that holds what slots held before",
        read: |metrics| count(&metrics.stored),
    },
];

fn count(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// Tokens per second since the last call. Times are in microseconds.
fn rate(tokens: &AtomicU64, time: &AtomicU64, last: &[AtomicU64; 2]) -> f64 {
    let since = |counter: &AtomicU64, last: &AtomicU64| {
        let now = counter.load(Ordering::Relaxed);
        now.saturating_sub(last.swap(now, Ordering::Relaxed)) as f64
    };
    let (tokens, time) = (since(tokens, &last[0]), since(time, &last[1]));
    if time > 0.0 { tokens * 1e6 / time } else { 0.0 }
}

impl Metrics {
    /// Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for MetricRow { name, kind, help, read } in METRICS {
            let value = read(self);
            let name = format!("llamacpp:{name}");
            text.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n"));
        }
        text
    }

    /// Takes the counters of an engine over.
    pub fn meter(&self, meters: &Meters) {
        let take =
            |to: &AtomicU64, from: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        take(&self.steps, &meters.steps);
        take(&self.shared_steps, &meters.sequence_steps);
        take(&self.stored, &meters.stored_bytes);
    }

    /// A request came and waits.
    pub fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// It got a slot.
    pub fn start(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.processing.fetch_add(1, Ordering::Relaxed);
    }

    /// It is done or gave up; `started` if it had a slot.
    pub fn end(&self, started: bool) {
        let gauge = if started { &self.processing } else { &self.waiting };
        gauge.fetch_sub(1, Ordering::Relaxed);
    }

    /// What a request took.
    pub fn count(&self, timings: &Timings) {
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let add = |counter: &AtomicU64, value: u64| counter.fetch_add(value, Ordering::Relaxed);
        add(&self.prompt_tokens, timings.prompt_tokens as u64);
        add(&self.cached_tokens, timings.cached_tokens as u64);
        add(&self.prompt_time, microseconds(timings.prompt));
        add(&self.generated_tokens, timings.generated_tokens as u64);
        add(&self.generation_time, microseconds(timings.generation));
        add(&self.guesses, timings.guesses as u64);
        add(&self.guessed_tokens, timings.guessed_tokens as u64);
        add(&self.accepted_tokens, timings.accepted_tokens as u64);
        let tokens = timings.prompt_tokens + timings.cached_tokens + timings.generated_tokens;
        self.longest.fetch_max(tokens as u64, Ordering::Relaxed);
    }
}
