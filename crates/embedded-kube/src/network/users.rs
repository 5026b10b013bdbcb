//! A user namespace for an ordinary user: root there is the user itself. Where the machine gives the user subordinate IDs, programs in
//! pods can also be others than root; the programs `newuidmap` and `newgidmap` may map these IDs, and nobody else.

use std::fs;
use std::io::{self, Write};
use std::process::{Child, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{User, getegid, geteuid};

/// Where subordinate IDs are listed, and the program that maps them.
const LISTS: [(&str, &str); 2] = [("/etc/subuid", "newuidmap"), ("/etc/subgid", "newgidmap")];

/// Moves this process, which has no threads, into a user namespace where it is root.
pub(super) fn enter() -> Result<(), Errno> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Only a process that stays outside can map more than one ID.
    let mapper = subordinate().and_then(|ranges| Mapper::start(uid, gid, ranges).ok());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    if mapper.is_some_and(Mapper::map) {
        return Ok(());
    }
    let write = |file: &str, text: &str| fs::write(format!("/proc/self/{file}"), text);
    let failed = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    // The mapper may have come as far as the first.
    if users().is_empty() {
        write("uid_map", &format!("0 {uid} 1\n")).map_err(failed)?;
    }
    // The kernel's condition for an ordinary user's group map.
    write("setgroups", "deny").map_err(failed)?;
    write("gid_map", &format!("0 {gid} 1\n")).map_err(failed)
}

/// What an ordinary user can do so that programs in pods may be several users, where they may not.
pub fn several_users_hint() -> Option<String> {
    let ids: u64 = users()
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum();
    (ids <= 1).then(|| {
        "programs in pods have one user ID: chown, su and the like fail there. To change that, install the package uidmap and \
         type `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER`"
            .to_owned()
    })
}

fn users() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

/// The first and the number of a user's subordinate IDs.
type Range = (u32, u32);

/// This user's subordinate user and group IDs, where everything is there to map them.
fn subordinate() -> Option<[Range; 2]> {
    let uid = geteuid();
    let name = User::from_uid(uid)
        .ok()
        .flatten()
        .map(|user| user.name)
        .unwrap_or_default();
    let [users, groups] = LISTS.map(|(list, program)| {
        crate::node::find_program(program)?;
        range(&fs::read_to_string(list).ok()?, &name, uid.as_raw())
    });
    Some([users?, groups?])
}

/// From a list with lines such as `alice:100000:65536`, or with a number in place of the name.
fn range(list: &str, name: &str, id: u32) -> Option<Range> {
    let id = id.to_string();
    list.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        fields.next().filter(|owner| *owner == name || *owner == id)?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some((first, count))
    })
}

/// A shell outside of the namespace that waits for it to exist.
struct Mapper(Child);

impl Mapper {
    fn start(uid: u32, gid: u32, [users, groups]: [Range; 2]) -> io::Result<Self> {
        let pid = std::process::id();
        let map =
            |program: &str, own: u32, (first, count): Range| format!("{program} {pid} 0 {own} 1 1 {first} {count}");
        let [(_, for_users), (_, for_groups)] = LISTS;
        let script = format!(
            "read go && {} && {}",
            map(for_users, uid, users),
            map(for_groups, gid, groups)
        );
        let mut shell = crate::node::program("sh");
        shell
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shell.spawn().map(Self)
    }

    /// Whether it could.
    fn map(mut self) -> bool {
        let told = self
            .0
            .stdin
            .take()
            .is_some_and(|mut stdin| stdin.write_all(b"go\n").is_ok());
        let ended = self.0.wait();
        told && ended.is_ok_and(|status| status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn subordinate_ids_belong_to_a_name_or_a_number() {
        let list = "# comment\nbob:1:2\nalice:100000:65536\nalice:7:7\n1002:300000:10\neve:x:y\nzoe:5:0\n";
        for (name, id, expected) in [
            ("alice", 1000, Some((100_000, 65_536))),
            ("carol", 1002, Some((300_000, 10))),
            ("eve", 1003, None),
            ("zoe", 1004, None),
            ("nobody", 1, None),
        ] {
            assert_eq!(range(list, name, id), expected, "{name}");
        }
    }
}
