//! What all requests share: options, keys and the log; of a model its queue's length, counters, and what each slot does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::audit::Audit;
use crate::error::{ApiError, ApiResult, Kind, ServerError};
use crate::grammar::Grammars;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::options::{Options, Served};
use crate::speech::Speech;

/// What requests share, whatever model they are for.
pub struct Front {
    /// How models are served.
    pub options: Options,
    /// Keys of clients.
    pub keys: Arc<Keys>,
    /// The log of requests, if there is one.
    pub audit: Option<Arc<Audit>>,
    /// Start of the server in seconds since 1970.
    pub started: u64,
}

impl Front {
    /// Reads the keys and opens the log.
    pub fn new(options: Options) -> Result<Arc<Self>, ServerError> {
        let keys = Arc::new(Keys::open(&options)?);
        let audit = options.audit.as_ref().map(|audit| Audit::open(audit, &options.warnings)).transpose()?;
        Ok(Arc::new(Self { options, keys, audit: audit.map(Arc::new), started: now() }))
    }
}

/// What requests to one model share.
pub struct App {
    /// What does not depend on the model.
    pub front: Arc<Front>,
    /// The model.
    pub served: Served,
    /// Counters for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// The last request of each slot.
    pub slots: Arc<Slots>,
    /// Grammars of requests.
    pub grammars: Grammars,
    /// How the model writes reasoning and calls.
    pub speech: Speech,
    /// How strongly each adapter counts for requests that say nothing else; none if that cannot be changed.
    strengths: RwLock<Arc<[f32]>>,
    open: Arc<AtomicUsize>,
}

impl App {
    /// Nothing has been asked yet.
    pub fn new(front: Arc<Front>, served: Served) -> Self {
        let slots = Slots::new(served.engine.sequences() as usize);
        let speech = Speech::new(&served.template);
        if let Some(reports) = &front.options.routed {
            served.engine.tell(reports.clone());
        }
        let scales = served.adapters.iter().filter(|_| served.switchable).map(|adapter| adapter.scale);
        Self {
            front,
            speech,
            strengths: RwLock::new(scales.collect()),
            served,
            metrics: Arc::default(),
            slots: Arc::new(slots),
            grammars: Grammars::default(),
            open: Arc::default(),
        }
    }

    /// How strongly each adapter counts for requests that say nothing else; none if that cannot be changed.
    pub fn strengths(&self) -> Arc<[f32]> {
        self.strengths.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes that for requests to come.
    pub fn set_strengths(&self, strengths: Arc<[f32]>) {
        *self.strengths.write().unwrap_or_else(PoisonError::into_inner) = strengths;
    }

    /// Number of slots.
    pub fn slot_count(&self) -> usize {
        self.served.engine.sequences() as usize
    }

    /// Places for `count` answers among those that run or wait, or the error that says to come back.
    pub fn admit(&self, count: usize) -> ApiResult<Vec<Place>> {
        let most = self.slot_count().saturating_add(self.front.options.queue);
        let admitted = self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
            open.checked_add(count).filter(|open| *open <= most)
        });
        match admitted {
            Ok(_) => Ok((0..count).map(|_| Place { open: self.open.clone() }).collect()),
            Err(open) => {
                let message = format!(
                    "the queue is full: {open} answers run or wait, at most {most} may (--queue-limit); try again later"
                );
                Err(ApiError::new(Kind::Unavailable, message))
            }
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The place of one answer among those that run or wait; given back when dropped.
pub struct Place {
    open: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The last request of each slot.
pub struct Slots {
    views: Mutex<Vec<Option<Arc<View>>>>,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { views: Mutex::new(vec![None; count]) }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Option<Arc<View>>>> {
        // The list is valid after any panic: it is only ever assigned to.
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has taken a slot.
    pub fn take(&self, slot: u32, view: &Arc<View>) {
        if let Some(place) = self.locked().get_mut(slot as usize) {
            *place = Some(view.clone());
        }
    }

    /// The last request of each slot, in order.
    pub fn list(&self) -> Vec<Option<Arc<View>>> {
        self.locked().clone()
    }
}

/// How far a request is. Written by the engine thread, read by `/slots`.
#[derive(Default)]
pub struct View {
    /// Number of the request.
    pub task: u64,
    /// Its settings.
    pub settings: Value,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Prompt tokens in the cache now.
    pub processed: AtomicUsize,
    /// Prompt tokens that were there before.
    pub cached: AtomicUsize,
    /// Tokens generated.
    pub decoded: AtomicUsize,
    /// 1 once it is done.
    pub done: AtomicUsize,
}
