//! Hostile headers cost neither time nor memory: allocations are counted.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{Image, array, string, value};
use puna_gguf::File;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's promises are those that the system allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that opening a file allocates at most at one time beyond the file itself, and seconds.
fn cost(bytes: Vec<u8>) -> (usize, f64, bool) {
    let start = std::time::Instant::now();
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = File::from_bytes(bytes);
    (PEAK.load(Relaxed) - before, start.elapsed().as_secs_f64(), result.is_ok())
}

/// One test, since the counters are shared.
#[test]
fn allocations_follow_the_bytes_that_are_there() {
    let odd = |bytes: Vec<u8>| Image::changed(|image| image.keys.push((b"odd".to_vec(), bytes)));
    let huge = 1u64 << 63;
    let mut cases = vec![
        ("key count", Image::changed(|image| image.key_count = Some(huge))),
        ("tensor count", Image::changed(|image| image.tensor_count = Some(huge))),
        ("string", odd(value(8, &huge.to_le_bytes()))),
        ("key", odd([value(0, &[0]), huge.to_le_bytes().to_vec()].concat())),
        ("nested array", odd(array(9, 1 << 62, &[]))),
    ];
    for element in 0..13 {
        cases.push(("array", odd(array(element, huge, &[]))));
        cases.push(("array", odd(array(element, 1 << 31, &[]))));
    }
    for extent in [(1 << 42) + 1, 1 << 61, i64::MAX as u64] {
        cases.push(("dimension", Image::changed(|image| image.tensors[0].dimensions[1] = extent)));
    }
    for (what, bytes) in cases {
        let (peak, seconds, accepted) = cost(bytes);
        assert!(!accepted, "{what}");
        assert!(peak < 1 << 16, "{what}: {peak} bytes");
        assert!(seconds < 0.1, "{what}: {seconds} s");
    }

    // The most that a file can ask for per byte: empty strings, small keys, small tensors.
    let strings = odd(array(8, 1 << 17, &vec![0; 8 << 17]));
    let length = strings.len();
    let (peak, _, accepted) = cost(strings);
    assert!(accepted && peak < 4 * length, "{peak} bytes for strings in {length}");
    let keys = Image::changed(|image| {
        image.keys =
            (0..65_536u32).map(|index| (format!("{index:05}").into_bytes(), value(0, &[0]))).collect();
    });
    let length = keys.len();
    let (peak, _, accepted) = cost(keys);
    assert!(accepted && peak < 16 * length, "{peak} bytes for keys in {length}");
    let text = odd(value(8, &string(&vec![0xff; 1 << 20])));
    let length = text.len();
    let (peak, _, accepted) = cost(text);
    assert!(accepted && peak < 6 * length, "{peak} bytes for replaced text in {length}");
}
