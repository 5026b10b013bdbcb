//! Identifiers use the words of the glossary (ADR 24): the words that it replaces must not come back.
//!
//! Only words that have no other meaning in code are looked for. Texts and comments are for reviewers.

use anyhow::{Result, ensure};

use crate::paths::Paths;

/// Where it is looked. MySQL follows.
const FOLDERS: [&str; 8] = [
    "crates/core/src",
    "crates/runtime/src",
    "crates/backup/src",
    "crates/engines/etcd",
    "crates/engines/etcd-driver",
    "crates/engines/example",
    "crates/sim/src",
    "crates/stateward/src",
];

/// A replaced word as a part of an identifier, and what to write.
const WORDS: [(&str, &str); 12] = [
    ("authority", "ca"),
    ("authorities", "cas"),
    ("dice", "rng"),
    ("fate", "health"),
    ("figures", "metrics"),
    ("mood", "activity"),
    ("silence", "no_reply"),
    ("tenure", "leadership"),
    ("voice", "probe"),
    ("voices", "probes"),
    ("wish", "desired"),
    ("wishes", "desired"),
];

/// Identifiers that stay: stored words (ADR 24), HTTP's own, and what other engines still use.
const ALLOWED: [&str; 5] = [
    "AuthorityReplaced",
    "RotatingAuthority",
    "AUTHORITY_DAYS",
    "authority",
    "make_authority",
];

pub(super) fn check(paths: &Paths) -> Result<()> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        for file in sources(&paths.checkout.join(folder))? {
            let text = std::fs::read_to_string(&file)?;
            let shown = file.strip_prefix(&paths.checkout).unwrap_or(&file).display();
            found.extend(replaced(&text).map(|(line, name, word)| format!("{shown}:{line}: {name}: write {word}")));
        }
    }
    ensure!(
        found.is_empty(),
        "identifiers with words that docs/adr/0024-glossary.md replaces:\n{}",
        found.join("\n")
    );
    Ok(())
}

fn sources(folder: &std::path::Path) -> Result<Vec<std::path::PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    Ok(all)
}

/// The line, the identifier and the better word of each one that is not allowed.
fn replaced(text: &str) -> impl Iterator<Item = (usize, &str, &'static str)> {
    let lines = text.lines().zip(1..);
    lines.flat_map(|(line, number)| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let names = code(line).flat_map(move |code| code.split(move |c| !is_part(c)));
        names.filter_map(move |name| {
            let word = WORDS
                .iter()
                .find(|(old, _)| segments(name).any(|segment| segment == *old));
            let (_, word) = word.filter(|_| !ALLOWED.contains(&name))?;
            Some((number, name, *word))
        })
    })
}

/// The parts of a line that are neither a comment nor between quotation marks. Strings over several lines are taken for code.
fn code(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split_once("//").map_or(line, |(code, _)| code);
    code.split('"').step_by(2)
}

fn segments(name: &str) -> impl Iterator<Item = String> {
    let mut all = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            all.push(String::new());
        }
        if c != '_'
            && let Some(last) = all.last_mut()
        {
            last.extend(c.to_lowercase());
        }
        before = c;
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_words_are_found_in_identifiers_only() {
        let text = "let voice = 1; // a voice\nfn f(x: SilenceKind) -> &str { \"authority\" }\nReason::AuthorityReplaced; invoice()";
        let found: Vec<_> = replaced(text).collect();
        assert_eq!(found, [(1, "voice", "probe"), (2, "SilenceKind", "no_reply")]);
    }
}
