//! The kind of pages that back the memory which services register.

use std::fs;
use std::process::Stdio;

use crate::lab::{Appliance, heddle};

const POOL: &str = "/proc/sys/vm/nr_hugepages";

fn pool() -> u64 {
    fs::read_to_string(POOL).unwrap().trim().parse().unwrap()
}

/// A pool of 2 MiB hugepages for this test. Dropping the value gives them back.
struct Hugepages(u64);

impl Hugepages {
    fn more(by: u64) -> Hugepages {
        let before = pool();
        fs::write(POOL, (before + by).to_string()).unwrap();
        assert_eq!(pool(), before + by, "the kernel has no memory for {by} hugepages");
        Hugepages(by)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _ = fs::write(POOL, pool().saturating_sub(self.0).to_string());
    }
}

/// Returns the KiB of a process's mappings that consist of pages of `page` KiB.
fn mapped(pid: i32, page: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut size = 0;
    let mut sum = 0;
    for line in text.lines() {
        let kib = |name| {
            let rest: &str = line.strip_prefix(name)?;
            rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        size = kib("Size:").unwrap_or(size);
        if kib("KernelPageSize:") == Some(page) {
            sum += size;
        }
    }
    sum
}

/// Returns a file in which DPDK uses no hugepages.
fn file(pages: &str) -> String {
    format!("[dpdk]\nhugepages = \"never\"\n[memory]\nregistered = 16\npages = \"{pages}\"\n")
}

#[test]
fn test_registered_memory_uses_requested_page_size() {
    let pages = Hugepages::more(16);
    for (asked, page) in [("2M", 2 << 20), ("auto", 2 << 20), ("4K", 4096)] {
        let a = Appliance::start(&file(asked));
        assert_eq!(a.ask(&["status"])["page"], page, "{asked}");
        let of_2m = mapped(a.pid(), 2048);
        assert_eq!(of_2m, if page == 4096 { 0 } else { 16 << 10 }, "{asked}");
        let text = String::from_utf8(a.command(&["status"]).stdout).unwrap();
        let kib = format!("services' memory in pages of {} KiB", page >> 10);
        assert!(text.contains(&kib), "{text}");
    }
    drop(pages);
    // Without hugepages, `auto` falls back to ordinary pages, and the status shows that.
    if pool() == 0 {
        assert_eq!(Appliance::start(&file("auto")).ask(&["status"])["page"], 4096);
    }
}

#[test]
fn test_appliance_refuses_to_start_without_requested_hugepages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heddle.toml");
    let port = "[[port]]\nvdev = \"net_null0,no-rx=1\"\naddresses = [\"10.0.0.1/24\"]\n";
    fs::write(&path, format!("{}[control]\nsocket = \"\"\n{port}", file("1G"))).unwrap();
    let mut c = heddle();
    let out = c.args(["serve", "--config"]).arg(&path).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("too few hugepages are free"), "{text}");
}
