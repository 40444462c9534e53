//! Every file of the corpus runs through its target once, without a fuzzer: so a fault that a file
//! has revealed stays fixed, and this test finds a target that no longer fits the crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use heddle_fuzz::{TARGETS, Target};

/// The prefix of a seed's file name. A fuzzer has found the other files.
const SEED: &str = "seed-";

/// The highest number of bytes in all files: the corpus comes with the sources, and has to stay
/// small.
const MOST: u64 = 200 << 10;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let folder = corpus().join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.expect("it is there");
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, fs::read(entry.path()).expect("it can be read"))
    };
    entries.map(read).collect()
}

#[test]
fn test_corpus_files_run_without_panic_and_seeds_reach_their_target() {
    for target in TARGETS {
        for (name, bytes) in files(target) {
            println!("{}/{name}", target.name);
            let understood = (target.run)(&bytes);
            assert!(
                understood || !name.starts_with(SEED),
                "{}/{name} reaches nothing",
                target.name
            );
        }
    }
}

/// `RENEW=1` writes the seeds.
#[test]
fn test_seed_files_match_output_of_the_encoders() {
    for target in TARGETS {
        let folder = corpus().join(target.name);
        let seeds = (target.seeds)();
        let want: BTreeMap<_, _> =
            seeds.into_iter().map(|(name, bytes)| (format!("{SEED}{name}"), bytes)).collect();
        if std::env::var_os("RENEW").is_some() {
            fs::create_dir_all(&folder).expect("a folder");
            for name in files(target).into_keys().filter(|name| name.starts_with(SEED)) {
                fs::remove_file(folder.join(name)).expect("it was there");
            }
            for (name, bytes) in &want {
                fs::write(folder.join(name), bytes).expect("room for it");
            }
        }
        let mut are = files(target);
        are.retain(|name, _| name.starts_with(SEED));
        assert!(are == want, "{}: RENEW=1 makes them anew", target.name);
    }
}

/// Each target has a binary and a folder, and each binary and folder has a target.
#[test]
fn test_fuzz_targets_match_binaries_and_corpus_folders() {
    let names = |folder: &Path| -> BTreeSet<String> {
        let all = fs::read_dir(folder).expect("it is there");
        let stem = |e: std::io::Result<fs::DirEntry>| e.expect("it is there").path();
        all.map(stem)
            .map(|p| p.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    };
    let targets: BTreeSet<_> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(names(&corpus()), targets);
    assert_eq!(names(&root.join("fuzz_targets")), targets);
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("it is there");
    let manifest = read("Cargo.toml");
    for t in &targets {
        assert!(manifest.contains(&format!("name = \"{t}\"")), "{t}");
        let body = format!("heddle_fuzz::{t}::run(data);");
        assert!(read(&format!("fuzz_targets/{t}.rs")).contains(&body), "{t}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
}

#[test]
fn test_corpus_stays_within_its_size_limit() {
    let len = |t: &Target| files(t).values().map(|b| b.len() as u64).sum::<u64>();
    assert!(TARGETS.iter().map(len).sum::<u64>() <= MOST);
}
