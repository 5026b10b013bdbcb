//! Tests the planner of backups. Its mutants are with those of the other planners.

use super::{REAL_BACKUPS, run_backups};

const HISTORIES: u64 = 100;

#[test]
fn histories_of_backups_keep_every_rule() {
    let mut backups = 0;
    // 424: a pod that another operator created late, while the object was being deleted.
    for seed in (0..HISTORIES).chain([424]) {
        let outcome = run_backups(&REAL_BACKUPS, seed, false);
        if let Some(broken) = outcome.broken {
            let story = run_backups(&REAL_BACKUPS, seed, true).story;
            let tail: Vec<&String> = story.iter().rev().take(120).rev().collect();
            panic!("{tail:#?}\nseed {seed} broke {broken:?}");
        }
        backups += outcome.backups;
    }
    assert!(backups > HISTORIES * 5, "{backups} backups");
}
