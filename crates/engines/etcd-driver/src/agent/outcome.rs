//! The last words of a container, and handing the program on to another.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use stateward_etcd::api::agent::Outcome;

/// What Kubernetes keeps of a termination message.
const LIMIT: usize = 4096;

/// The outcome as text that Kubernetes does not cut.
fn words(outcome: &Outcome) -> String {
    let text = |outcome: &Outcome| serde_json::to_string(outcome).unwrap_or_default();
    let mut outcome = outcome.clone();
    while text(&outcome).len() > LIMIT {
        let shorter = |message: &mut String| {
            let half = message.chars().count() / 2;
            *message = message.chars().take(half).collect();
        };
        match &mut outcome {
            // The list is for people; what is gone from the store can be seen there.
            Outcome::BackedUp(done) if !done.deleted.is_empty() => done.deleted.truncate(done.deleted.len() / 2),
            Outcome::BackedUp(done) if !done.retention_problem.is_empty() => shorter(&mut done.retention_problem),
            Outcome::Proven(done) if !done.deleted.is_empty() => done.deleted.truncate(done.deleted.len() / 2),
            Outcome::Proven(done) if !done.retention_problem.is_empty() => shorter(&mut done.retention_problem),
            Outcome::Failed(failure) if !failure.message.is_empty() => shorter(&mut failure.message),
            _ => break,
        }
    }
    text(&outcome)
}

/// Writes the outcome where the operator reads it.
pub fn write(outcome: &Outcome, file: &Path) -> io::Result<()> {
    std::fs::write(file, words(outcome))
}

/// Copies this program into a folder, so that a container of another image can run it.
pub fn install(folder: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let (target, part) = (folder.join("stateward"), folder.join("stateward.part"));
    std::fs::create_dir_all(folder)?;
    std::fs::copy(program, &part)?;
    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(part, target)
}

#[cfg(test)]
mod tests {
    use stateward_etcd::api::agent::{BackedUp, Failure, FailureReason};

    use super::*;

    #[test]
    fn the_last_words_fit() {
        let long = "ü".repeat(5000);
        let failed = Outcome::Failed(Failure {
            reason: FailureReason::StoreFailed,
            message: long.clone(),
            retry: true,
        });
        let many = Outcome::BackedUp(BackedUp {
            deleted: vec!["bucket/etcd.backup_v1_2026-01-01-00:00:00".into(); 500],
            retention_problem: long,
            ..BackedUp::default()
        });
        for outcome in [failed, many] {
            let text = words(&outcome);
            assert!(text.len() <= LIMIT);
            serde_json::from_str::<Outcome>(&text).expect("an outcome");
        }
    }
}
