//! What a container sees below `/`, apart from its volumes: the machine's programs and libraries, or an image's own root. Either is
//! shown read-only; `/etc`, `/var` and their like are made anew in memory, so that programs may write there.

use std::collections::VecDeque;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{Args, OWN_ETC};

/// Files of the host's `/etc` that programs need and that hold no secrets.
const HOST_ETC: [&str; 9] = [
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "protocols",
    "services",
    "ssl",
];

/// Folders that every container has, whatever its image holds.
const FOLDERS: [&str; 8] = [
    "/etc", "/run", "/var/run", "/var/tmp", "/var/lib", "/root", "/home", "/dev",
];

/// Entries of an image's root that are never shown: each container has these of its own.
const NOT_SHOWN: [&str; 5] = ["dev", "proc", "run", "sys", "tmp"];

/// How the folders of an image's root are shown that programs write into.
const OPEN: [&str; 5] = ["etc", "home", "root", "srv", "var"];

/// Shows the machine's own programs and libraries.
pub(super) fn host(args: &mut Args, targets: &[&Path]) {
    let lay = Lay {
        root: Path::new("/"),
        targets,
    };
    for name in ["usr", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        lay.read_only(args, &Path::new("/").join(name));
    }
    for folder in FOLDERS {
        args.push(["--dir", folder]);
    }
    for name in HOST_ETC {
        lay.read_only(args, &Path::new("/etc").join(name));
    }
}

/// Shows an image's own root.
pub(super) fn own(args: &mut Args, root: &Path, targets: &[&Path]) {
    let lay = Lay { root, targets };
    for place in lay.entries(Path::new("/")) {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        match &*name {
            name if NOT_SHOWN.contains(&name) => {}
            name if OPEN.contains(&name) => lay.open(args, &place),
            _ => lay.read_only(args, &place),
        }
    }
    for folder in FOLDERS {
        let place = Path::new(folder);
        let shown = !NOT_SHOWN.iter().any(|name| place == Path::new("/").join(name));
        if !(shown && fs::symlink_metadata(lay.source(place)).is_ok()) {
            args.push(["--dir", folder]);
        }
    }
}

/// Where a path leads below a root, following the symbolic links that the root itself has: bubblewrap would follow them
/// through the file system of the machine.
pub(super) fn resolve(root: &Path, path: &Path) -> PathBuf {
    let mut place = PathBuf::from("/");
    let mut rest: VecDeque<_> = path.components().map(|part| part.as_os_str().to_owned()).collect();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => place = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                place.pop();
            }
            Some(Component::Normal(_)) => match fs::read_link(below(root, &place.join(&part))) {
                Ok(link) if links < 40 => {
                    links += 1;
                    for part in link.components().rev() {
                        rest.push_front(part.as_os_str().to_owned());
                    }
                }
                _ => place.push(&part),
            },
            _ => {}
        }
    }
    place
}

fn below(root: &Path, place: &Path) -> PathBuf {
    root.join(place.strip_prefix("/").unwrap_or(place))
}

/// A root on the machine, and the places in the container where something else is mounted.
struct Lay<'a> {
    root: &'a Path,
    targets: &'a [&'a Path],
}

impl Lay<'_> {
    /// Where a place of the container is on the machine.
    fn source(&self, place: &Path) -> PathBuf {
        below(self.root, place)
    }

    fn entries(&self, place: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.source(place)).into_iter().flatten().flatten();
        let mut places: Vec<PathBuf> = entries.map(|entry| place.join(entry.file_name())).collect();
        places.sort();
        places
    }

    /// Shows a path read-only, unless a volume is to appear below it at a place that the root does not have: nothing can be
    /// created below a read-only mount, so that folder is then made anew and its entries are shown one by one.
    fn read_only(&self, args: &mut Args, place: &Path) {
        let source = self.source(place);
        let Ok(kind) = fs::symlink_metadata(&source) else {
            return;
        };
        if kind.is_symlink() {
            if let Ok(destination) = fs::read_link(&source) {
                args.push(["--symlink"]);
                args.paths([&destination, place]);
            }
            return;
        }
        let opened = |target: &&&Path| target.starts_with(place) && **target != place && !self.source(target).exists();
        if self.targets.contains(&place) {
            return;
        }
        if !kind.is_dir() || !self.targets.iter().any(|target| opened(&target)) {
            args.push(["--ro-bind"]);
            args.paths([&source, place]);
            return;
        }
        args.push(["--dir"]);
        args.paths([place]);
        for entry in self.entries(place) {
            self.read_only(args, &entry);
        }
    }

    /// Makes a folder anew with all folders below it, and shows the files in them.
    fn open(&self, args: &mut Args, place: &Path) {
        let own = |place: &Path| OWN_ETC.iter().any(|name| place == Path::new("/etc").join(name));
        if self.targets.contains(&place) || own(place) {
            return;
        }
        if !fs::symlink_metadata(self.source(place)).is_ok_and(|kind| kind.is_dir()) {
            return self.read_only(args, place);
        }
        args.push(["--dir"]);
        args.paths([place]);
        for entry in self.entries(place) {
            self.open(args, &entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_root_are_followed_inside_it() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib")).unwrap();
        for (link, to) in [("lib", "usr/lib"), ("run", "/var/run"), ("usr/lib/up", "../share/x")] {
            std::os::unix::fs::symlink(to, root.path().join(link)).unwrap();
        }
        for (path, leads_to) in [
            ("/lib/a/b", "/usr/lib/a/b"),
            ("/run/db", "/var/run/db"),
            ("/lib/up/y", "/usr/share/x/y"),
            ("/data", "/data"),
        ] {
            assert_eq!(resolve(root.path(), Path::new(path)), Path::new(leads_to), "{path}");
        }
    }
}
