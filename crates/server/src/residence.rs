//! An engine that may be asleep: after a while without requests its weights and caches are freed, and the next
//! request that needs them loads them again.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use puna_engine::{Engine, Meters};

use crate::error::{ApiError, ApiResult, Kind};
use crate::report::{Report, Reports};

/// Loads the model again; an error says why it cannot.
pub type Reload = Box<dyn Fn() -> Result<Engine, String> + Send + Sync>;

/// Called when an engine was put to sleep: its memory is free, but the allocator may hold it back.
pub type Freed = Box<dyn Fn() + Send + Sync>;

/// Between two looks at whether an engine is idle, at most.
const LOOK: Duration = Duration::from_secs(1);

/// What of an engine stays known while it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sizes {
    context: u32,
    context_is_learned: bool,
    vocabulary: u32,
    sequences: u32,
    embeds: bool,
    speculates: bool,
}

impl Sizes {
    fn of(engine: &Engine) -> Self {
        Self {
            context: engine.context(),
            context_is_learned: engine.context_is_learned(),
            vocabulary: engine.vocabulary(),
            sequences: engine.sequences(),
            embeds: engine.embeds(),
            speculates: engine.speculates(),
        }
    }
}

/// Who uses the engine, and when somebody last did.
struct Uses {
    count: usize,
    last: Instant,
}

struct Sleep {
    /// So long without requests before it sleeps.
    idle: Duration,
    reload: Reload,
    freed: Freed,
}

/// An engine that may be asleep.
pub struct Residence {
    sizes: Sizes,
    sleep: Option<Sleep>,
    /// Nothing while it sleeps. Counting a use and putting it to sleep both hold this.
    engine: Arc<tokio::sync::Mutex<Option<Arc<Engine>>>>,
    uses: Mutex<Uses>,
    asleep: AtomicBool,
    /// Counters of the engine that is or was awake last.
    meters: Mutex<Arc<Meters>>,
    reports: OnceLock<Reports>,
}

impl Residence {
    /// One that never sleeps.
    pub fn new(engine: Engine) -> Arc<Self> {
        Self::with(engine, None)
    }

    /// One that sleeps after `idle` without requests and is loaded again by `reload`, which must give an engine of the
    /// same sizes. Whenever it has fallen asleep, `freed` is called.
    pub fn sleeping(engine: Engine, idle: Duration, reload: Reload, freed: Freed) -> Arc<Self> {
        Self::with(engine, Some(Sleep { idle, reload, freed }))
    }

    fn with(engine: Engine, sleep: Option<Sleep>) -> Arc<Self> {
        Arc::new(Self {
            sizes: Sizes::of(&engine),
            sleep,
            meters: Mutex::new(engine.meters()),
            engine: Arc::new(tokio::sync::Mutex::new(Some(Arc::new(engine)))),
            uses: Mutex::new(Uses { count: 0, last: Instant::now() }),
            asleep: AtomicBool::new(false),
            reports: OnceLock::new(),
        })
    }

    /// From now on falling asleep and waking are told.
    pub(crate) fn tell(&self, reports: Reports) {
        // There is one server for a model.
        let _ = self.reports.set(reports);
    }

    /// Positions that one sequence can hold.
    pub fn context(&self) -> u32 {
        self.sizes.context
    }

    /// Whether it is no more because the model has learned no more positions.
    pub fn context_is_learned(&self) -> bool {
        self.sizes.context_is_learned
    }

    /// Number of tokens that exist.
    pub fn vocabulary(&self) -> u32 {
        self.sizes.vocabulary
    }

    /// Number of sequences that can be served at once.
    pub fn sequences(&self) -> u32 {
        self.sizes.sequences
    }

    /// Whether the model makes embeddings instead of text.
    pub fn embeds(&self) -> bool {
        self.sizes.embeds
    }

    /// Whether it guesses how texts go on.
    pub fn speculates(&self) -> bool {
        self.sizes.speculates
    }

    /// Whether weights and caches are freed now.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    /// Counters of the engine that is or was awake last. They begin anew whenever it was loaded.
    pub fn meters(&self) -> Arc<Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        // Numbers are valid after any panic.
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, loaded again if it sleeps. It stays awake until what is returned is dropped. A request that leaves
    /// while it waits ends nothing: others wait for the same.
    pub async fn awake(self: &Arc<Self>) -> ApiResult<Awake> {
        let home = self.clone();
        let waking = tokio::spawn(async move {
            let mut place = home.engine.clone().lock_owned().await;
            let engine = match &*place {
                Some(engine) => engine.clone(),
                None => {
                    let engine = Arc::new(home.clone().load().await?);
                    *place = Some(engine.clone());
                    *home.meters.lock().unwrap_or_else(PoisonError::into_inner) = engine.meters();
                    home.asleep.store(false, Ordering::Release);
                    home.report(Report::Awake);
                    engine
                }
            };
            home.uses().count += 1;
            Ok(Awake { engine, home })
        });
        waking
            .await
            .unwrap_or_else(|_| Err(ApiError::new(Kind::Internal, "loading the model again panicked")))
    }

    async fn load(self: Arc<Self>) -> ApiResult<Engine> {
        let failed = |reason: String| {
            ApiError::new(Kind::Internal, format!("the model slept and cannot be loaded again: {reason}"))
        };
        let home = self.clone();
        let loading = tokio::task::spawn_blocking(move || match &home.sleep {
            Some(sleep) => (sleep.reload)(),
            None => Err("it never sleeps".into()),
        });
        let engine = loading.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?;
        if Sizes::of(&engine) != self.sizes {
            return Err(failed("its file has changed; restart the server".into()));
        }
        Ok(engine)
    }

    /// Puts the engine to sleep whenever it was idle for long enough. Never ends for one that may sleep.
    pub(crate) async fn nap(self: Arc<Self>) {
        let Some(Sleep { idle, .. }) = &self.sleep else { return };
        let idle = *idle;
        loop {
            tokio::time::sleep((idle / 4).clamp(Duration::from_millis(10), LOOK)).await;
            let mut place = self.engine.lock().await;
            let due = {
                let uses = self.uses();
                uses.count == 0 && uses.last.elapsed() >= idle
            };
            if let Some(engine) = place.take_if(|_| due) {
                // Waits for the engine's thread and frees memory: both take their time.
                let home = self.clone();
                let freeing = tokio::task::spawn_blocking(move || {
                    drop(engine);
                    home.sleep.iter().for_each(|sleep| (sleep.freed)());
                });
                // A panic in there leaves nothing to put in order here.
                let _ = freeing.await;
                self.asleep.store(true, Ordering::Release);
                self.report(Report::Sleeping);
            }
        }
    }

    fn report(&self, report: Report) {
        if let Some(reports) = self.reports.get() {
            reports.say(&report);
        }
    }
}

/// An engine that stays awake while this lives.
pub struct Awake {
    engine: Arc<Engine>,
    home: Arc<Residence>,
}

impl Deref for Awake {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        let mut uses = self.home.uses();
        uses.count -= 1;
        uses.last = Instant::now();
    }
}
