//! Tests the stack of the main thread, which grows. The test is a program of its own, because the
//! test harness runs its tests on other threads.

use heddle_ibverbs::memory::share;

fn deep(n: usize) -> usize {
    let bytes = std::hint::black_box([1u8; 4096]);
    if n == 0 { usize::from(bytes[7]) } else { usize::from(bytes[n % 4096]) + deep(n - 1) }
}

/// The lowest address of the stack.
fn lowest() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let line = maps.lines().find(|line| line.ends_with("[stack]"));
    let start = line.and_then(|line| line.split('-').next());
    start.and_then(|start| usize::from_str_radix(start, 16).ok()).unwrap_or_default()
}

fn main() {
    let bytes = [5u8; 4096];
    // Look this up first: a shared page splits the mapping that has the name.
    let lowest = lowest();
    let shared = share(bytes.as_ptr().expose_provenance(), bytes.len(), false);
    let shared = shared.expect("a part of the stack is shared");
    assert_eq!(shared.region().load(shared.offset() + 9), Ok(5));
    // The stack still grows down from its lowest page, even if that page is shared.
    let lowest = share(lowest, 1, false).expect("the lowest page of the stack is shared");
    assert_eq!(deep(1000), 1001, "4 MB of stack");
    drop((shared, lowest));
    assert_eq!(deep(1000), 1001);
    std::hint::black_box(&bytes);
}
