//! Saved sequences in files, so that they outlive the program.
//!
//! A file is written beside its place under another name, brought to the disk and then renamed, so that under a file's
//! own name there is a whole one or none, whenever the program ends. What is read is checked as a whole before
//! anything of it is used; a damaged file is deleted and was never there.
//! (`saved.rs` tells their layout.)

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use puna_runtime::{Checksum, Reach};

use crate::EngineError;
use crate::saved::{Head, Saved, damaged};
use crate::store::{SHORTEST, spared};

/// End of the names of files, and of those that are being written.
const SUFFIX: &str = ".sequence";
const UNFINISHED: &str = ".unfinished";
/// Files of this age that are still being written belong to nobody.
const ABANDONED: Duration = Duration::from_secs(60);
/// Writes that may wait; what comes then is not kept.
const WAITING: usize = 4;

/// A file that can be read.
struct Entry {
    path: PathBuf,
    /// Identity of its model.
    model: u64,
    tokens: Vec<u32>,
    /// How far back it can go when it is restored.
    reach: Reach,
    /// Bytes of the whole file.
    size: u64,
    /// Counts uses, to find the one not used for longest.
    used: u64,
    /// Its saved sequence, as long as it waits to be written.
    waiting: Weak<Saved>,
}

/// Takes a line for the person who runs the program; called on a thread of the cache.
pub type Warn = Box<dyn Fn(&str) + Send>;

/// A saved sequence that was found.
pub(crate) enum Found {
    /// It is in memory.
    Here(Arc<Saved>),
    /// It is being read from this file.
    Coming(PathBuf, Receiver<io::Result<Saved>>),
}

enum Task {
    Write(PathBuf, u64, Arc<Saved>),
    Use(PathBuf),
    Remove(PathBuf),
}

/// A folder of saved sequences, of any models, that is never larger than its limit; those not used for longest go
/// first. Files are written and read on threads of their own; only a patient [`DiskCache::put`] waits for the disk.
pub struct DiskCache {
    folder: PathBuf,
    limit: u64,
    model: u64,
    /// Tells ways of computing apart that give other numbers.
    way: u64,
    entries: Vec<Entry>,
    clock: u64,
    tasks: Option<Sender<Task>>,
    /// Writes that wait.
    writes: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl DiskCache {
    /// The folder, which is made if it does not exist, with what is in it and sound. Files that are damaged or of another
    /// version are deleted; those that cannot be read now stay, and do not count. `limit` is in bytes. An error if nothing can be written there now; when that happens later, `warn`
    /// hears of it, once until a file is written again.
    pub fn open(folder: &Path, limit: u64, warn: Warn) -> Result<Self, EngineError> {
        let fault = |source| EngineError::DiskCache { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(fault)?;
        try_to_write(folder).map_err(fault)?;
        let mut found: Vec<(SystemTime, Entry)> = Vec::new();
        for entry in fs::read_dir(folder).map_err(fault)? {
            let Ok(entry) = entry else { continue };
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let Ok(data) = entry.metadata() else { continue };
            let changed = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.ends_with(UNFINISHED) {
                if changed.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(&path);
                }
            } else if name.ends_with(SUFFIX) && data.is_file() {
                match read_header(&path) {
                    Ok(head) => found.push((changed, known(head, path))),
                    Err(error) if is_damage(&error) => drop(fs::remove_file(&path)),
                    // It may be unreadable to this user only.
                    Err(_) => {}
                }
            }
        }
        found.sort_by_key(|(changed, _)| *changed);
        let mut entries: Vec<Entry> = found.into_iter().map(|(_, entry)| entry).collect();
        (1..).zip(&mut entries).for_each(|(used, entry)| entry.used = used);
        let (tasks, received) = channel();
        let writes = Arc::new(AtomicUsize::new(0));
        let (thread, left) = (std::thread::Builder::new().name("cache".into()), writes.clone());
        let thread = thread.spawn(move || serve(&received, &left, &warn)).map_err(EngineError::Thread)?;
        let clock = entries.len() as u64;
        let mut cache = Self {
            folder: folder.to_owned(),
            limit,
            model: 0,
            way: 0,
            entries,
            clock,
            tasks: Some(tasks),
            writes,
            thread: Some(thread),
        };
        cache.shrink(limit);
        Ok(cache)
    }

    /// Keeps what was computed this way apart from what was computed otherwise, and so is not the same to the bit.
    pub fn computed(mut self, way: &str) -> Self {
        let mut hash = Checksum::default();
        hash.add(way.as_bytes());
        self.way = hash.value();
        self
    }

    /// From now on sequences are those of this model.
    pub(crate) fn serve_model(&mut self, identity: u64) {
        self.model = identity ^ self.way;
    }

    /// Whether a sequence with these tokens is worth a file: it is long enough, and no file begins with it and goes back as
    /// far.
    pub(crate) fn wants(&self, tokens: &[u32], reach: &Reach) -> bool {
        let covers = |entry: &Entry| entry.tokens.starts_with(tokens) && entry.reach.covers(reach);
        tokens.len() >= SHORTEST && !self.own().any(covers)
    }

    fn own(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.model == self.model)
    }

    /// Writes a sequence, in place of those that it begins with; of these one that goes back to where this does not stays, but
    /// is the first to go. If the disk is too slow it is not kept, or, if `patient`, this waits for the disk, so that few
    /// copies are in memory at once.
    pub(crate) fn put(&mut self, saved: Arc<Saved>, patient: bool) {
        let (tokens, reach, size) = (saved.tokens.clone(), saved.reach.clone(), saved.file_bytes());
        let Some(room) = self.limit.checked_sub(size) else { return };
        let mut name = Checksum::default();
        tokens.iter().for_each(|token| name.add(&token.to_le_bytes()));
        let path = self.folder.join(format!("{:016x}-{:016x}{SUFFIX}", self.model, name.value()));
        while self.writes.load(Ordering::Acquire) >= WAITING {
            if !patient || self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let model = self.model;
        let begins = |entry: &Entry| entry.model == model && tokens.starts_with(&entry.tokens);
        self.entries.iter_mut().filter(|entry| begins(entry)).for_each(|entry| entry.used = 0);
        // What this one replaces stays until it is written if there is room for both, also a file of the same name.
        self.shrink(room);
        self.writes.fetch_add(1, Ordering::AcqRel);
        let waiting = Arc::downgrade(&saved);
        if !self.send(Task::Write(path.clone(), model, saved)) {
            return;
        }
        self.entries.retain(|entry| entry.path != path);
        let covered = self.entries.iter().filter(|entry| begins(entry) && reach.covers(&entry.reach));
        let covered: Vec<PathBuf> = covered.map(|entry| entry.path.clone()).collect();
        covered.iter().for_each(|path| self.forget(path));
        self.clock += 1;
        let used = self.clock;
        self.entries.push(Entry { path, model, tokens, reach, size, used, waiting });
    }

    fn send(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok())
    }

    /// Deletes files, those not used for longest first, until the others take no more than this.
    fn shrink(&mut self, room: u64) {
        while self.entries.iter().map(|entry| entry.size).sum::<u64>() > room {
            let oldest = self.entries.iter().min_by_key(|entry| entry.used);
            let Some(path) = oldest.map(|entry| entry.path.clone()) else { return };
            self.forget(&path);
        }
    }

    /// Deletes a file. One that was found and cannot be read is damaged.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.entries.retain(|entry| entry.path != path);
        // After the writes that wait, so that a file is not deleted before it exists.
        self.send(Task::Remove(path.to_owned()));
    }

    /// The sequence that spares most of the prompt, if that is more than `least` tokens.
    pub(crate) fn find(&mut self, prompt: &[u32], least: usize) -> Option<Found> {
        let spares = self.own().map(|entry| (spared(prompt, &entry.tokens, &entry.reach), entry));
        let (spared, best) = spares.max_by_key(|(spared, _)| *spared)?;
        if spared <= least.max(SHORTEST - 1) {
            return None;
        }
        let (path, waiting) = (best.path.clone(), best.waiting.upgrade());
        let found = match waiting {
            Some(saved) => Found::Here(saved),
            None => {
                let (sender, receiver) = channel();
                let (from, model, tokens) = (path.clone(), best.model, best.tokens.clone());
                // Whoever waited for it may be gone.
                let read = move || drop(sender.send(read(&from, model, &tokens)));
                std::thread::Builder::new().name("cache reader".into()).spawn(read).ok()?;
                Found::Coming(path.clone(), receiver)
            }
        };
        self.clock += 1;
        let clock = self.clock;
        let used = self.entries.iter_mut().find(|entry| entry.path == path);
        used.into_iter().for_each(|entry| entry.used = clock);
        self.send(Task::Use(path));
        Some(found)
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            // What waits is written first. It does not panic; there is nothing to hand on.
            let _ = thread.join();
        }
    }
}

fn serve(tasks: &Receiver<Task>, writes: &AtomicUsize, warn: &Warn) {
    let mut failing = false;
    while let Ok(task) = tasks.recv() {
        // A cache may lose things: a full disk is no reason to stop.
        match task {
            Task::Write(path, model, saved) => {
                let written = write(&path, model, &saved);
                writes.fetch_sub(1, Ordering::AcqRel);
                if let Err(error) = &written
                    && !failing
                {
                    let folder = path.parent().unwrap_or(&path).display();
                    warn(&format!(
                        "the cache folder {folder} cannot be written now, what it should hold is lost: {error}"
                    ));
                }
                failing = written.is_err();
            }
            Task::Use(path) => {
                let file = File::options().append(true).open(path);
                drop(file.and_then(|file| file.set_modified(SystemTime::now())));
            }
            Task::Remove(path) => drop(fs::remove_file(path)),
        }
    }
}

/// Writes a file and deletes it.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!("test.{}{UNFINISHED}", std::process::id()));
    let written = File::create(&path).and_then(|mut file| file.write_all(b"test"));
    written.and(fs::remove_file(&path))
}

/// Whether an error is the file's and not the system's.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn known(head: Head, path: PathBuf) -> Entry {
    let size = head.size();
    let Head { tokens, reach, model, .. } = head;
    Entry { path, model, tokens, reach, size, used: 0, waiting: Weak::new() }
}

fn open(path: &Path) -> io::Result<(File, Head)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let head = Head::read(&mut file, size)?;
    Ok((file, head))
}

fn read_header(path: &Path) -> io::Result<Head> {
    Ok(open(path)?.1)
}

/// The saved sequence of a file that is still the one that is known.
fn read(path: &Path, model: u64, tokens: &[u32]) -> io::Result<Saved> {
    let (file, head) = open(path)?;
    if head.model != model || head.tokens != tokens {
        return Err(damaged("it is another one"));
    }
    let parts = head.read_parts(&mut io::BufReader::new(file))?;
    Ok(Saved { tokens: head.tokens, reach: head.reach, parts })
}

/// Writes beside the file, brings it to the disk and renames it.
fn write(path: &Path, model: u64, saved: &Saved) -> io::Result<()> {
    // Programs that share the folder do not write the same file.
    let beside = path.with_extension(format!("{}{UNFINISHED}", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| {
        saved.write(model, &mut file)?;
        file.sync_all()
    });
    let result = written.and_then(|()| fs::rename(&beside, path));
    if result.is_err() {
        // What is left of a failed attempt is of no use; there may be nothing.
        let _ = fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(start: u32, count: u32) -> Vec<u32> {
        (start..start + count).collect()
    }

    fn opened(folder: &Path, limit: u64) -> DiskCache {
        let mut cache = DiskCache::open(folder, limit, Box::new(|_| ())).unwrap();
        cache.serve_model(7);
        cache
    }

    fn put(cache: &mut DiskCache, tokens: &[u32], bytes: Vec<u8>) {
        put_with(cache, tokens, Reach::default(), bytes);
    }

    fn put_with(cache: &mut DiskCache, tokens: &[u32], reach: Reach, bytes: Vec<u8>) {
        cache.put(Arc::new(Saved { tokens: tokens.to_vec(), reach, parts: vec![bytes] }), true);
    }

    /// As an engine asks: a file that cannot be read is damaged.
    fn found(cache: &mut DiskCache, prompt: &[u32]) -> Option<(usize, Vec<u8>)> {
        loop {
            let saved = match cache.find(prompt, 0)? {
                Found::Here(saved) => saved,
                Found::Coming(path, coming) => match coming.recv().unwrap() {
                    Ok(saved) => Arc::new(saved),
                    Err(_) => {
                        cache.forget(&path);
                        continue;
                    }
                },
            };
            return Some((saved.tokens.len(), saved.parts.concat()));
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = opened(folder.path(), 10_000);
        assert!(
            cache.wants(&tokens(0, 20), &Reach::default()) && !cache.wants(&tokens(0, 15), &Reach::default())
        );
        put(&mut cache, &tokens(0, 20), vec![1; 100]);
        put(&mut cache, &tokens(100, 20), vec![2; 100]);
        drop(cache);
        let mut cache = opened(folder.path(), 10_000);
        assert!(!cache.wants(&tokens(0, 18), &Reach::default()), "there already");
        assert_eq!(found(&mut cache, &tokens(0, 30)), Some((20, vec![1; 100])));
        assert_eq!(found(&mut cache, &tokens(100, 18)), Some((20, vec![2; 100])));
        assert_eq!(found(&mut cache, &tokens(50, 18)), None);
        assert!(cache.find(&tokens(0, 30), 20).is_none(), "the slot holds as much");
        // Longer ones replace their beginnings; other models see nothing and disturb nothing.
        put(&mut cache, &tokens(0, 25), vec![3; 100]);
        drop(cache);
        assert_eq!(files(folder.path()).len(), 2);
        let mut other = opened(folder.path(), 10_000);
        other.serve_model(8);
        assert_eq!(found(&mut other, &tokens(0, 30)), None);
        drop(other);
        assert_eq!(found(&mut opened(folder.path(), 10_000), &tokens(0, 30)), Some((25, vec![3; 100])));
    }

    #[test]
    fn what_cannot_be_gone_back_to_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let states = |lengths: &[u32]| Reach { from: u32::MAX, lengths: lengths.to_vec() };
        let mut cache = opened(folder.path(), 10_000);
        put_with(&mut cache, &tokens(0, 60), states(&[40, 60]), vec![1; 10]);
        assert!(
            !cache.wants(&tokens(0, 60), &states(&[40, 60])) && cache.wants(&tokens(0, 60), &states(&[50]))
        );
        put_with(&mut cache, &tokens(0, 100), states(&[60, 90, 100]), vec![2; 10]);
        // The longer one shares more with all of these, but only the shorter one goes back to 40.
        let check = |cache: &mut DiskCache| {
            for (count, expected) in [(120, 2), (95, 2), (60, 1), (45, 1)] {
                let found = found(cache, &tokens(0, count));
                assert_eq!(found.map(|(_, bytes)| bytes[bytes.len() - 1]), Some(expected), "{count}");
            }
            assert_eq!(found(cache, &tokens(0, 40)), None);
            assert!(cache.find(&tokens(0, 95), 90).is_none(), "the slot goes back as far");
        };
        check(&mut cache);
        drop(cache);
        let mut cache = opened(folder.path(), 10_000);
        check(&mut cache);
        put_with(&mut cache, &tokens(0, 130), states(&[40, 60, 90, 100, 130]), vec![3; 10]);
        drop(cache);
        assert_eq!(files(folder.path()).len(), 1);
    }

    #[test]
    fn the_folder_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        // Each takes 56 + 80 + 12 + 60 = 208 bytes.
        let mut cache = opened(folder.path(), 650);
        for start in 0..3 {
            put(&mut cache, &tokens(start * 100, 20), vec![start as u8; 60]);
        }
        drop(cache);
        let mut cache = opened(folder.path(), 650);
        assert!(found(&mut cache, &tokens(0, 20)).is_some());
        put(&mut cache, &tokens(300, 20), vec![3; 60]);
        put(&mut cache, &tokens(400, 20), vec![4; 1000]);
        drop(cache);
        let size: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!((files(folder.path()).len(), size), (3, 624));
        let mut cache = opened(folder.path(), 650);
        assert!(found(&mut cache, &tokens(0, 20)).is_some() && found(&mut cache, &tokens(100, 20)).is_none());
        drop(cache);
        drop(opened(folder.path(), 450));
        assert_eq!(files(folder.path()).len(), 2, "a smaller limit holds at once");
    }

    #[test]
    fn the_folder_is_bounded_at_every_moment() {
        // 208 bytes each, and 4 more for each token more.
        for (limit, order) in [(208 + 212, [true, true, false]), (208 + 211, [true, false, true])] {
            let folder = tempfile::tempdir().unwrap();
            let mut cache = opened(folder.path(), limit);
            let (sender, tasks) = channel();
            drop(cache.tasks.replace(sender));
            put(&mut cache, &tokens(0, 20), vec![0; 60]);
            put(&mut cache, &tokens(0, 21), vec![1; 60]);
            let written = |task: &Task| matches!(task, Task::Write(..));
            let found: Vec<bool> = tasks.try_iter().map(|task| written(&task)).collect();
            assert_eq!(found, order, "what is replaced goes first where there is no room for both");
        }
    }

    #[test]
    fn ways_of_computing_are_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        put(&mut opened(folder.path(), 10_000), &tokens(0, 20), vec![1; 100]);
        let mut other =
            DiskCache::open(folder.path(), 10_000, Box::new(|_| ())).unwrap().computed("row by row");
        other.serve_model(7);
        assert_eq!(found(&mut other, &tokens(0, 30)), None);
        put(&mut other, &tokens(0, 20), vec![2; 100]);
        assert_eq!(found(&mut other, &tokens(0, 30)), Some((20, vec![2; 100])));
        drop(other);
        assert_eq!(found(&mut opened(folder.path(), 10_000), &tokens(0, 30)), Some((20, vec![1; 100])));
    }

    #[test]
    fn damaged_files_are_not_there() {
        let folder = tempfile::tempdir().unwrap();
        put(&mut opened(folder.path(), 10_000), &tokens(0, 20), vec![5; 100]);
        let path = files(folder.path()).remove(0);
        let good = fs::read(&path).unwrap();
        let mut changed: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
        changed.extend((0..good.len()).map(|place| {
            let mut bytes = good.clone();
            bytes[place] ^= 1 << (place % 8);
            bytes
        }));
        changed.push([&good[..], &[0]].concat());
        changed.push(b"PUNACACH".repeat(100));
        for (number, bytes) in changed.iter().enumerate() {
            // Damaged before the program starts, and while it runs.
            fs::write(&path, bytes).unwrap();
            assert_eq!(found(&mut opened(folder.path(), 10_000), &tokens(0, 20)), None, "{number}");
            assert!(!path.exists(), "{number}");
            fs::write(&path, &good).unwrap();
            let mut cache = opened(folder.path(), 10_000);
            fs::write(&path, bytes).unwrap();
            assert_eq!(found(&mut cache, &tokens(0, 20)), None, "{number}");
            drop(cache);
            assert!(!path.exists(), "{number}");
        }
        fs::write(&path, &good).unwrap();
        assert_eq!(found(&mut opened(folder.path(), 10_000), &tokens(0, 20)), Some((20, vec![5; 100])));
    }

    #[test]
    fn what_others_left_is_left_or_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["notes.txt", "new.1.unfinished", "old.1.unfinished"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at("folder.sequence")).unwrap();
        let past = SystemTime::now() - 2 * ABANDONED;
        File::options().append(true).open(at("old.1.unfinished")).unwrap().set_modified(past).unwrap();
        drop(opened(folder.path(), 1000));
        assert!(
            at("notes.txt").exists() && at("new.1.unfinished").exists() && at("folder.sequence").exists()
        );
        assert!(!at("old.1.unfinished").exists());
        for place in [at("notes.txt"), at("notes.txt").join("below")] {
            let error = DiskCache::open(&place, 1000, Box::new(|_| ())).err().unwrap().to_string();
            assert!(error.contains("notes.txt"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cache");
        let (sender, heard) = std::sync::mpsc::channel();
        let warn = Box::new(move |line: &str| sender.send(line.to_owned()).unwrap());
        let mut cache = DiskCache::open(&place, 10_000, warn).unwrap();
        assert_eq!(files(&place), Vec::<PathBuf>::new(), "the attempt leaves nothing");
        fs::remove_dir(&place).unwrap();
        put(&mut cache, &tokens(0, 20), vec![1; 100]);
        put(&mut cache, &tokens(100, 20), vec![2; 100]);
        let line = heard.recv().unwrap();
        assert!(line.contains("cache cannot be written"), "{line}");
        // The second write has failed, too, before the third one is tried.
        while files_or_none(&place).is_empty() {
            fs::create_dir_all(&place).unwrap();
            put(&mut cache, &tokens(200, 20), vec![3; 100]);
        }
        drop(cache);
        assert_eq!(heard.iter().count(), 0);
    }

    fn files_or_none(folder: &Path) -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}
