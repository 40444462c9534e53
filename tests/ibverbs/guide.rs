//! Runs the blocks of the README and the guide that are marked as runnable (```` ```sh run ````) as a
//! reader would type them: line by line, each command again until it succeeds where a process in the
//! background may still be starting.
//!
//! Each block has namespaces of its own, for processes, mounts and interfaces, in which it is root.
//! So a block that makes interfaces or binds `/run/heddle.sock` disturbs nothing, and no process
//! outlives its block.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::library;

#[path = "../support/pages.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pages;
#[path = "../support/shell.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod shell;

use pages::{Page, root};

/// Seconds after which a block has hung.
const PATIENCE: &str = "90";

/// The beginning of the script of every block.
const PRELUDE: &str = r#"
mount -t tmpfs none /run && ip link set lo up || exit 1
started=()
again() {
    local n
    for ((n = 0; n < 100; n++)); do
        eval "$1" && return
        sleep 0.2
    done
    echo "did not succeed: $1" >&2
    exit 1
}
"#;

/// The end of the script: a process in the background still runs, or has ended well.
const END: &str = r#"
for pid in "${started[@]}"; do
    kill -0 "$pid" 2>/dev/null || wait "$pid" || { echo "ended with $?, in the background" >&2; exit 1; }
done
"#;

/// Returns true if the line starts a process in the background.
fn is_background(line: &str) -> bool {
    shlex::split(line).is_some_and(|words| words.last().is_some_and(|w| w == "&"))
}

/// Returns the script that runs a block.
fn script(block: &str) -> String {
    let mut script = PRELUDE.to_owned();
    let mut background = false;
    for line in shell::lines(block) {
        let quoted = shlex::try_quote(&line).unwrap();
        if is_background(&line) {
            background = true;
            writeln!(script, "eval {quoted}\nstarted+=($!)").unwrap();
        } else if background {
            writeln!(script, "again {quoted}").unwrap();
        } else {
            writeln!(script, "eval {quoted} || exit 1").unwrap();
        }
    }
    script + END
}

fn run(block: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    // The commands name files of the repository from its top.
    symlink(root().join("docs"), dir.path().join("docs")).unwrap();
    let heddle = std::env::var_os("HEDDLE").unwrap_or_else(|| env!("CARGO_BIN_EXE_heddle").into());
    let bin = Path::new(&heddle).parent().unwrap().to_owned();
    let mut path = vec![bin];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut c = Command::new("timeout");
    c.args(["--kill-after=1", PATIENCE, "unshare", "--net", "--mount", "--pid", "--fork"]);
    c.args(["--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        c.args(["--user", "--map-root-user"]);
    }
    c.args(["bash", "-uc", &script(block)]).current_dir(dir.path());
    c.env("PATH", std::env::join_paths(path).unwrap());
    c.env("HEDDLE_LIBDIR", library::library()).env_remove("LD_LIBRARY_PATH");
    c.env("XDG_RUNTIME_DIR", dir.path()).env_remove("HEDDLE_SOCKET");
    c.stdin(std::process::Stdio::null());
    c.output().unwrap_or_else(|e| panic!("timeout: {e}; apt-get install coreutils util-linux"))
}

fn text(out: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", out.status, text(&out.stdout), text(&out.stderr))
}

/// Pages whose blocks readers run.
fn all() -> Vec<std::path::PathBuf> {
    pages::pages("docs/guide", &["README.md"])
}

#[test]
fn test_runnable_blocks_of_the_documents_run_to_their_end() {
    let mut blocks = 0;
    for path in all() {
        for block in Page::read(&path).blocks {
            if block.info.iter().any(|w| w == "run") {
                blocks += 1;
                let out = run(&block.text);
                let place = format!("{}:{}", path.display(), block.line);
                assert!(out.status.success(), "{place}: {}\n{}", text(&out), block.text);
            }
        }
    }
    assert!(blocks >= 4, "only {blocks} blocks were found");
}

#[test]
fn test_block_with_a_wrong_command_fails() {
    for block in [
        "heddle nothing",
        "heddle status",
        "true\nfalse\ntrue",
        "heddle serve --config docs/nothing.toml &\nsleep 3\n",
    ] {
        assert!(!run(block).status.success(), "{block}");
    }
    let out = run("heddle --version && ls docs/heddle.toml");
    assert!(out.status.success(), "{}", text(&out));
}

/// The fence of a block has `sh`, by which readers of Markdown colour it, and at most `run` after
/// it.
#[test]
fn test_fences_of_shell_blocks_have_no_other_words() {
    for path in all() {
        for block in Page::read(&path).blocks {
            let info: Vec<&str> = block.info.iter().map(String::as_str).collect();
            let known = info.len() < 2 || info == ["sh", "run"];
            assert!(known, "{}:{}: {info:?}", path.display(), block.line);
        }
    }
}
