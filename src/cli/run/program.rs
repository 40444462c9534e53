//! Finds the program to run, and checks that our library can be loaded into it at all.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An executable file.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

/// The way in which a program was linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A loader loads the program's libraries.
    Dynamic,
    /// The program contains all it needs, and names no loader.
    Static,
    /// The program has a dynamic section but no loader: a static position-independent program, or
    /// the loader itself.
    Alone,
    /// The program is for another word size or byte order than ours.
    OtherClass,
    /// A script, or another format that the kernel knows.
    Other,
}

impl Program {
    /// Searches for the program called `name` as a shell does.
    ///
    /// # Errors
    /// Returns one line of text if there is no such program.
    pub(super) fn find(name: &OsStr) -> Result<Program, String> {
        let search = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        Program::find_in(name, &search)
    }

    fn find_in(name: &OsStr, search: &OsStr) -> Result<Program, String> {
        let runs = |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
        let shown = Path::new(name).display();
        if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            return match path.metadata() {
                Err(e) => Err(format!("{shown}: {e}")),
                Ok(_) if runs(&path) => Ok(Program(path)),
                Ok(_) => Err(format!("{shown} is no program: it may not be executed")),
            };
        }
        let found = env::split_paths(search).map(|dir| dir.join(name)).find(|path| runs(path));
        found.map(Program).ok_or_else(|| format!("there is no program {shown} in PATH"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Checks that our library can take the place of the system's.
    ///
    /// # Errors
    /// Returns the reason why not, in one line.
    pub(super) fn check(&self) -> Result<(), String> {
        let shown = self.0.display();
        let meta = self.0.metadata().map_err(|e| format!("{shown}: {e}"))?;
        // A set-ID program changes nothing for a user who already is its owner.
        let others = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw()
            || meta.mode() & 0o2000 != 0 && meta.gid() != rustix::process::getegid().as_raw();
        if others {
            return Err(format!(
                "{shown} is set-user-ID or set-group-ID: the loader ignores {} there, so it would use the \
                 system's library; run it as its owner",
                super::library::SEARCH
            ));
        }
        match kind(&head(&self.0)) {
            Kind::Alone if is_loader(&self.0) => Ok(()),
            Kind::Static | Kind::Alone => Err(format!(
                "{shown} is statically linked: it has libraries of its own, and none can take their place"
            )),
            Kind::OtherClass => Err(format!(
                "{shown} is for another word size than Heddle's library, which is for 64 bits"
            )),
            Kind::Dynamic | Kind::Other => Ok(()),
        }
    }
}

/// Reads enough of a file for its headers; less, or nothing, if the file is unreadable.
fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(64 << 10).read_to_end(&mut head);
    }
    head
}

/// Classifies a file by its first bytes: by its ELF header and its program headers, one of which
/// (`PT_INTERP`) names a loader.
fn kind(head: &[u8]) -> Kind {
    const PT_DYNAMIC: u32 = 2;
    const PT_INTERP: u32 = 3;
    let Some(header) = head.first_chunk::<64>() else { return Kind::Other };
    if &header[..4] != b"\x7fELF" {
        return Kind::Other;
    }
    // ELFCLASS64 and ELFDATA2LSB.
    if header[4..6] != [2, 1] {
        return Kind::OtherClass;
    }
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let offset = u64::from_le_bytes(std::array::from_fn(|i| header[32 + i]));
    let (size, count) = (usize::from(word(54)), usize::from(word(56)));
    let Ok(offset) = usize::try_from(offset) else { return Kind::Other };
    let (mut interpreted, mut dynamic) = (false, false);
    for n in 0..count {
        let at = n.checked_mul(size).and_then(|n| n.checked_add(offset));
        let Some(kind) = at.and_then(|at| head.get(at..)?.first_chunk::<4>()) else {
            // The header lies outside the bytes that were read, so the kind is unknown.
            return Kind::Other;
        };
        match u32::from_le_bytes(*kind) {
            PT_INTERP => interpreted = true,
            PT_DYNAMIC => dynamic = true,
            _ => {}
        }
    }
    match (interpreted, dynamic) {
        (true, _) => Kind::Dynamic,
        // A position-independent static program, or a loader to be run with another program as its
        // argument.
        (false, true) => Kind::Alone,
        (false, false) => Kind::Static,
    }
}

/// Returns true if the file's name is that of a loader of glibc or musl.
fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Builds an ELF file with program headers of these types.
    fn elf(class: u8, types: &[u32]) -> Vec<u8> {
        let mut f = vec![0; 64];
        f[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        f[32] = 64;
        f[54] = 56;
        f[56] = u8::try_from(types.len()).unwrap();
        for t in types {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&t.to_le_bytes());
            f.extend(header);
        }
        f
    }

    #[test]
    fn test_kind_of_a_program_is_read_from_its_headers() {
        assert_eq!(kind(&elf(2, &[6, 3, 1, 2])), Kind::Dynamic);
        assert_eq!(kind(&elf(2, &[1, 1])), Kind::Static);
        assert_eq!(kind(&elf(2, &[1, 2])), Kind::Alone);
        assert_eq!(kind(&elf(1, &[3])), Kind::OtherClass);
        assert_eq!(kind(b"#!/bin/sh\n"), Kind::Other);
        assert_eq!(kind(b""), Kind::Other);
        let whole = elf(2, &[1, 3]);
        for cut in 0..whole.len() {
            let _ = kind(&whole[..cut]);
        }
        let mut far = elf(2, &[3]);
        far[32..40].fill(0xff);
        assert_eq!(kind(&far), Kind::Other, "headers beyond the file");
        assert_eq!(kind(&head(&env::current_exe().unwrap())), Kind::Dynamic);
    }

    #[test]
    fn test_program_is_found_in_path_and_static_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, bytes: &[u8], mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        make("script", b"#!/bin/sh\n", 0o755);
        make("static", &elf(2, &[1]), 0o755);
        make("plain", b"x", 0o644);
        let search = dir.path().as_os_str();
        let find = |name: &str| Program::find_in(OsStr::new(name), search);
        assert!(find("script").unwrap().check().is_ok());
        let e = find("static").unwrap().check().unwrap_err();
        assert!(e.contains("statically linked"), "{e}");
        assert!(find("plain").is_err() && find("nothing").is_err());
        let path = dir.path().join("plain");
        let e = Program::find(path.as_os_str()).unwrap_err();
        assert!(e.contains("may not be executed"), "{e}");
        assert!(Program::find(dir.path().join("no").as_os_str()).is_err());
    }
}
