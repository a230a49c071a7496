//! A server of many models: the router. Each model is served by a process of its own, which is started by the first
//! request for it; whatever happens to one, the others go on.
//!
//! All decisions about which process starts or ends are made under one lock, in [`Table`]; whoever has to wait for one
//! looks again whenever something has changed.

mod child;
mod endpoints;
mod proxy;

pub use endpoints::{OWN_ROUTES, is_own, router};

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::api::identifier;
use crate::app::Front;
use crate::caller::Caller;
use crate::error::{ApiError, ApiResult, Kind};
use crate::report::Report;
use child::Ended;

/// For so long a model that could not be loaded is not tried again by requests.
const AGAIN: Duration = Duration::from_secs(5);

/// A model that can be served.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Its name in requests.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// Its file, if it is one.
    pub path: Option<PathBuf>,
    /// Bytes of its files, as far as they are known.
    pub bytes: u64,
    /// What its process is started with.
    pub arguments: Vec<String>,
    /// Load it when the server starts.
    pub at_start: bool,
    /// How long its process may take to end when it is told to.
    pub stop_time: Duration,
}

/// Makes the command for a model's process. It must serve on a loopback address, accept the key that is the second
/// argument, tell [`Report`]s on its standard output and end when its standard input does.
pub type StartChild = Box<dyn Fn(&Entry, &str) -> std::process::Command + Send + Sync>;

/// Which models are served, and how.
pub struct Offer {
    /// Lists the models; called again when a client asks for that.
    pub list: Box<dyn Fn() -> Result<Vec<Entry>, String> + Send + Sync>,
    /// Starts one.
    pub start: StartChild,
    /// Most of them loaded at the same time; 0 for no limit.
    pub most: usize,
    /// Requests load what they need.
    pub autoload: bool,
}

impl Offer {
    /// The models, all with names of their own.
    fn entries(&self) -> Result<Vec<Entry>, String> {
        let entries = (self.list)()?;
        let mut names = HashSet::new();
        for name in entries.iter().flat_map(|entry| std::iter::once(&entry.name).chain(&entry.aliases)) {
            if !names.insert(name) {
                return Err(format!("two models are named '{name}'"));
            }
        }
        let at_start = entries.iter().filter(|entry| entry.at_start).count();
        if self.most > 0 && at_start > self.most {
            return Err(format!(
                "{at_start} models shall be loaded at the start, but at most {} at once",
                self.most
            ));
        }
        Ok(entries)
    }
}

/// Where a model's process answers.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Target {
    address: SocketAddr,
    key: String,
}

/// How a model is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// There is no process; how the last one ended.
    Unloaded(Option<Ended>),
    /// Its process does not answer yet.
    Loading,
    /// Its process answers; perhaps it sleeps.
    Loaded { target: Target, asleep: bool },
    /// Its process takes no more requests and ends once it has answered those that it has.
    Leaving,
}

struct Slot {
    entry: Arc<Entry>,
    state: State,
    /// Requests that its process answers.
    open: usize,
    /// Requests that wait for it.
    waiting: usize,
    /// When it was last used, in uses of all models.
    used: u64,
    /// Tells its process to end.
    stop: Option<oneshot::Sender<()>>,
    /// It is no longer offered.
    gone: bool,
}

impl Slot {
    fn new(entry: Entry) -> Self {
        let entry = Arc::new(entry);
        Self { entry, state: State::Unloaded(None), open: 0, waiting: 0, used: 0, stop: None, gone: false }
    }

    fn is_named(&self, name: &str) -> bool {
        self.entry.name == name || self.entry.aliases.iter().any(|alias| alias == name)
    }

    /// Its process, if there is one, shall end once it has answered what it has.
    fn leave(&mut self) {
        if !matches!(self.state, State::Unloaded(_)) {
            self.state = State::Leaving;
            self.stop_if_free();
        }
    }

    fn stop_if_free(&mut self) {
        if self.state == State::Leaving && self.open == 0 {
            self.stop_now();
        }
    }

    fn stop_now(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
    }
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    clock: u64,
    /// Nothing is started any more.
    closing: bool,
}

impl Table {
    fn slot(&mut self, name: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.entry.name == name)
    }

    /// Room for one more process, made by ending the one that was not used for longest if need be.
    fn has_room(&mut self, most: usize) -> bool {
        let running = self.slots.iter().filter(|slot| !matches!(slot.state, State::Unloaded(_))).count();
        if most == 0 || running < most {
            return true;
        }
        if self.slots.iter().any(|slot| slot.state == State::Leaving) {
            return false;
        }
        // One that somebody waits for has just been loaded for that.
        let loaded = self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Loaded { .. }));
        let idlest = loaded.filter(|slot| slot.waiting == 0).min_by_key(|slot| (slot.open > 0, slot.used));
        if let Some(slot) = idlest {
            slot.leave();
        }
        false
    }
}

/// The models and their processes.
pub struct Many {
    /// What does not depend on a model.
    pub front: Arc<Front>,
    offer: Offer,
    table: Mutex<Table>,
    changes: watch::Sender<u64>,
    handed: Mutex<Handed>,
}

/// Requests that processes answer and of which they have not told the line for the audit log yet.
#[derive(Default)]
struct Handed {
    last: u64,
    /// By number, with the key of the process.
    open: HashMap<u64, (String, Arc<Caller>)>,
}

/// Whether requests may load a model, and whether it is tried although it just failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loading {
    Never,
    AsNeeded,
    Now,
}

impl Many {
    /// Nothing is loaded yet.
    pub fn new(front: Arc<Front>, offer: Offer, entries: Vec<Entry>) -> Arc<Self> {
        let slots = entries.into_iter().map(Slot::new).collect();
        let table = Mutex::new(Table { slots, ..Table::default() });
        Arc::new(Self { front, offer, table, changes: watch::Sender::new(0), handed: Mutex::default() })
    }

    /// The models of an offer.
    pub fn entries(offer: &Offer) -> Result<Vec<Entry>, String> {
        offer.entries()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is complete before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handed(&self) -> MutexGuard<'_, Handed> {
        // A map and a number are valid after any panic.
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a process answers a request and tells its line of the log. The number to tell it by, if there is a log.
    fn hand_over(&self, process: &str, caller: &Arc<Caller>) -> Option<u64> {
        self.front.audit.as_ref()?;
        caller.delegate(true);
        let mut handed = self.handed();
        handed.last += 1;
        let number = handed.last;
        handed.open.insert(number, (process.to_owned(), caller.clone()));
        Some(number)
    }

    /// A process will not answer a request: its line is written here, unless it has been told.
    fn take_back(&self, number: Option<u64>) {
        let caller = number.and_then(|number| self.handed().open.remove(&number));
        caller.into_iter().for_each(|(_, caller)| caller.delegate(false));
    }

    /// A process has ended: what it has not told it never will.
    fn take_all_back(&self, process: &str) {
        let open: Vec<(String, Arc<Caller>)> = {
            let mut handed = self.handed();
            handed.open.extract_if(|_, (key, _)| key == process).map(|(_, open)| open).collect()
        };
        for (_, caller) in open {
            caller.failed(proxy::PROCESS_ENDED);
            caller.delegate(false);
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Loads what shall be loaded at the start.
    pub fn begin(self: &Arc<Self>) {
        let names: Vec<String> = {
            let table = self.table();
            table
                .slots
                .iter()
                .filter(|slot| slot.entry.at_start)
                .map(|slot| slot.entry.name.clone())
                .collect()
        };
        names.into_iter().for_each(|name| self.load_aside(name));
    }

    fn load_aside(self: &Arc<Self>, name: String) {
        let many = self.clone();
        // Why it failed is told by `/models`.
        tokio::spawn(async move { many.lease(&name, Loading::Now).await.map(drop) });
    }

    /// Ends all processes and waits until they have.
    pub async fn close(self: &Arc<Self>) {
        let mut changes = self.changes.subscribe();
        {
            let mut table = self.table();
            table.closing = true;
            for slot in &mut table.slots {
                slot.stop_now();
            }
        }
        self.changed();
        while self.table().slots.iter().any(|slot| !matches!(slot.state, State::Unloaded(_))) {
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// The name of a model by one of its names; Ollama's clients add `:latest`.
    fn resolve(&self, name: &str) -> ApiResult<String> {
        let table = self.table();
        let find = |name: &str| table.slots.iter().find(|slot| !slot.gone && slot.is_named(name));
        let found = find(name).or_else(|| find(name.strip_suffix(":latest")?));
        found.map(|slot| slot.entry.name.clone()).ok_or_else(|| unknown(name))
    }

    /// The model that is meant where none is named: the only one, or the only one that is loaded.
    fn only(&self) -> Option<String> {
        let table = self.table();
        let single = |loaded: bool| {
            let fits = |slot: &&Slot| !slot.gone && (!loaded || !matches!(slot.state, State::Unloaded(_)));
            let mut slots = table.slots.iter().filter(fits);
            slots.next().filter(|_| slots.next().is_none())
        };
        single(false).or_else(|| single(true)).map(|slot| slot.entry.name.clone())
    }

    /// The process of a model, loaded if need be; it stays while the lease lives.
    async fn lease(self: &Arc<Self>, name: &str, loading: Loading) -> ApiResult<Lease> {
        let mut changes = self.changes.subscribe();
        let mut waiting = None;
        let mut loading = loading;
        loop {
            changes.borrow_and_update();
            if let Some(lease) = self.attempt(name, &mut loading)? {
                return Ok(lease);
            }
            if waiting.is_none() {
                waiting = Some(Waiting::new(self, name));
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// A lease if the model is loaded now. Otherwise what can be done for that is begun.
    fn attempt(self: &Arc<Self>, name: &str, loading: &mut Loading) -> ApiResult<Option<Lease>> {
        let mut table = self.table();
        if table.closing {
            return Err(ApiError::new(Kind::Unavailable, "the server ends"));
        }
        table.clock += 1;
        let clock = table.clock;
        let Some(slot) = table.slot(name).filter(|slot| !slot.gone) else { return Err(unknown(name)) };
        match &slot.state {
            State::Loaded { target, .. } => {
                let target = target.clone();
                slot.open += 1;
                slot.used = clock;
                return Ok(Some(Lease { many: self.clone(), name: name.to_owned(), target }));
            }
            State::Loading | State::Leaving => return Ok(None),
            State::Unloaded(_) if *loading == Loading::Never => {
                let message = format!("the model '{name}' is not loaded: POST /models/load loads it");
                return Err(ApiError::invalid(message));
            }
            State::Unloaded(Some(ended))
                if *loading == Loading::AsNeeded
                    && ended.loading
                    && !ended.asked
                    && ended.at.elapsed() < AGAIN =>
            {
                let message = format!("the model '{name}' could not be loaded: {}", ended.reason);
                return Err(ApiError::new(Kind::Internal, message));
            }
            State::Unloaded(_) => {}
        }
        if table.has_room(self.offer.most)
            && let Some(slot) = table.slot(name)
        {
            slot.state = State::Loading;
            self.start(slot);
            // If that fails it is said, not tried again.
            *loading = Loading::AsNeeded;
        }
        drop(table);
        self.changed();
        Ok(None)
    }

    /// Starts the process of a model.
    fn start(self: &Arc<Self>, slot: &mut Slot) {
        let (stop, stopped) = oneshot::channel();
        slot.stop = Some(stop);
        let (many, entry) = (self.clone(), slot.entry.clone());
        tokio::spawn(async move {
            let key = identifier("router-");
            let command = (many.offer.start)(&entry, &key);
            let hear = |report: &Report| many.hear(&entry.name, &key, report);
            let ended = child::run(command, stopped, entry.stop_time, hear).await;
            many.take_all_back(&key);
            many.ended(&entry.name, ended);
        });
    }

    /// A process has said something.
    fn hear(&self, name: &str, key: &str, report: &Report) {
        if let Report::Over { request, line } = report {
            // One that was taken back has its line.
            let known = self.handed().open.remove(request).is_some();
            return self.front.audit.iter().filter(|_| known).for_each(|audit| audit.write(line.clone()));
        }
        {
            let mut table = self.table();
            let Some(slot) = table.slot(name) else { return };
            match (report, &mut slot.state) {
                (Report::Listening(address), State::Loading) => {
                    let target = Target { address: *address, key: key.to_owned() };
                    slot.state = State::Loaded { target, asleep: false };
                }
                (Report::Sleeping, State::Loaded { asleep, .. }) => *asleep = true,
                (Report::Awake, State::Loaded { asleep, .. }) => *asleep = false,
                (Report::Used { key, tokens }, _) => return self.front.keys.spend(key, *tokens),
                // A failure is told by the end; what comes while a process leaves changes nothing.
                _ => return,
            }
        }
        self.changed();
    }

    fn ended(&self, name: &str, ended: Ended) {
        if !ended.asked {
            self.front.options.warnings.say(&format!("model '{name}': {}", ended.reason));
        }
        {
            let mut table = self.table();
            if let Some(slot) = table.slot(name) {
                slot.state = State::Unloaded(Some(ended));
                slot.stop = None;
            }
            table.slots.retain(|slot| !slot.gone || !matches!(slot.state, State::Unloaded(_)));
        }
        self.changed();
    }

    /// Waits until a model is no longer served at this place.
    async fn ended_at(&self, name: &str, target: &Target) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let there =
                |slot: &mut Slot| matches!(&slot.state, State::Loaded { target: now, .. } if now == target);
            if !self.table().slot(name).is_some_and(there) {
                return;
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Ends a model's process once it has answered what it has.
    fn unload(&self, name: &str) -> ApiResult<()> {
        {
            let mut table = self.table();
            let slot = table.slot(name).ok_or_else(|| unknown(name))?;
            if matches!(slot.state, State::Unloaded(_)) {
                return Err(ApiError::invalid(format!("the model '{name}' is not loaded")));
            }
            slot.leave();
        }
        self.changed();
        Ok(())
    }

    /// Lists the models again. Those that are loaded stay so until they are unloaded.
    fn reload(&self) -> ApiResult<()> {
        let entries = self.offer.entries().map_err(|reason| ApiError::new(Kind::Internal, reason))?;
        {
            let mut table = self.table();
            table.slots.iter_mut().for_each(|slot| slot.gone = true);
            for entry in entries {
                match table.slot(&entry.name) {
                    Some(slot) => {
                        slot.gone = false;
                        slot.entry = Arc::new(entry);
                    }
                    None => table.slots.push(Slot::new(entry)),
                }
            }
            table.slots.iter_mut().filter(|slot| slot.gone).for_each(Slot::leave);
            table.slots.retain(|slot| !slot.gone || !matches!(slot.state, State::Unloaded(_)));
            table.slots.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        }
        self.changed();
        Ok(())
    }
}

fn unknown(name: &str) -> ApiError {
    ApiError::new(Kind::NotFound, format!("there is no model '{name}'; GET /v1/models lists them"))
}

/// A request that waits for a model.
struct Waiting {
    many: Arc<Many>,
    name: String,
}

impl Waiting {
    fn new(many: &Arc<Many>, name: &str) -> Self {
        if let Some(slot) = many.table().slot(name) {
            slot.waiting += 1;
        }
        Self { many: many.clone(), name: name.to_owned() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(slot) = self.many.table().slot(&self.name) {
            slot.waiting = slot.waiting.saturating_sub(1);
        }
        // Others may get its room now.
        self.many.changed();
    }
}

/// A process that stays while this lives, unless it ends by itself.
struct Lease {
    many: Arc<Many>,
    name: String,
    target: Target,
}

impl Drop for Lease {
    fn drop(&mut self) {
        {
            let mut table = self.many.table();
            table.clock += 1;
            let clock = table.clock;
            if let Some(slot) = table.slot(&self.name) {
                slot.open = slot.open.saturating_sub(1);
                slot.used = clock;
                slot.stop_if_free();
            }
        }
        self.many.changed();
    }
}
