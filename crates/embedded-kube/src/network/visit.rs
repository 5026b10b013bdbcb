//! Running a program of the user's inside a cluster's network, from another process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::range::Range;

const RESOLV: &str = "resolv.conf";

/// Writes into a cluster's folder how names are resolved in its network.
pub(crate) fn write_resolv(folder: &Path, range: Range) -> io::Result<()> {
    let domain = crate::node::DOMAIN;
    let text = format!(
        "nameserver {}\nsearch default.svc.{domain} svc.{domain} {domain}\noptions ndots:5\n",
        range.dns()
    );
    fs::write(folder.join(RESOLV), text)
}

/// The command that runs a program inside the network of a cluster: it reaches pods and services, by their names too. The
/// cluster is that of the process `pid`, which called [`enter`](super::enter) and keeps its state in `folder`. The program sees
/// the user's files, and what it writes is the user's.
pub fn visit(pid: u32, folder: &Path, program: &[String]) -> io::Result<Command> {
    let same = |kind: &str| -> io::Result<bool> {
        Ok(fs::read_link(format!("/proc/{pid}/ns/{kind}"))? == fs::read_link(format!("/proc/self/ns/{kind}"))?)
    };
    let mut command = crate::node::program("nsenter");
    command.args(["--target", &pid.to_string(), "--net"]);
    if !same("user")? {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.arg("--").arg(crate::node::program("bwrap").get_program());
    // The name server is that of the cluster; behind a link, bubblewrap would put the file where it leads in its new root.
    let resolv = fs::canonicalize("/etc/resolv.conf").unwrap_or_else(|_| PathBuf::from("/etc/resolv.conf"));
    command.args([
        "--die-with-parent",
        "--cap-add",
        "ALL",
        "--dev-bind",
        "/",
        "/",
        "--ro-bind",
    ]);
    command.arg(folder.join(RESOLV)).arg(resolv);
    command.arg("--").args(program);
    Ok(command)
}
