//! The volume: its space, and making what was written to it durable.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::syncfs;
use stateward_mysql::agent::Volume;

/// What the files of binlogs begin with.
const BINLOGS: &str = "binlog.";

/// Size and free space of the file system that a folder is on, and what the binlogs of a data directory take.
pub(super) fn space(folder: &Path, data: &Path) -> io::Result<Volume> {
    let found = statvfs(folder)?;
    let block = found.fragment_size();
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    let binlogs = files.filter(|file| file.file_name().to_string_lossy().starts_with(BINLOGS));
    Ok(Volume {
        size: found.blocks() * block,
        free: found.blocks_available() * block,
        binlogs: binlogs.filter_map(|file| Some(file.metadata().ok()?.len())).sum(),
    })
}

/// Waits until everything on the file system of a folder is durable.
pub(super) fn sync_all(folder: &Path) -> io::Result<()> {
    Ok(syncfs(&File::open(folder)?)?)
}

/// Waits until the entries of a folder are durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
