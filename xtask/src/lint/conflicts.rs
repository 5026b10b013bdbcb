//! No tracked file has a line that git leaves where a merge had a conflict.

use std::fs;

use anyhow::{Result, bail};

use crate::paths::Paths;
use crate::shell::{cmd, output};

/// How git begins the lines around the two sides of a conflict, and around their common ancestor. The line between the sides is
/// not among them: in Markdown, it underlines a heading.
const MARKERS: [char; 3] = ['<', '|', '>'];

pub(super) fn check(paths: &Paths) -> Result<()> {
    let names = output(cmd("git", ["ls-files", "-z"]).current_dir(&paths.checkout))?;
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        // A link, a submodule, or a file that was deleted and not yet committed.
        let Ok(content) = fs::read(paths.checkout.join(name)) else {
            continue;
        };
        if let Some(line) = marker(&content) {
            bail!("{name}:{line} has a merge marker: resolve the conflict");
        }
    }
    Ok(())
}

/// The number of the first line with a marker: seven times the same character, then a space.
fn marker(content: &[u8]) -> Option<usize> {
    let is_marker = |line: &[u8]| {
        MARKERS
            .iter()
            .any(|&sign| line.starts_with(format!("{} ", sign.to_string().repeat(7)).as_bytes()))
    };
    content
        .split(|&byte| byte == b'\n')
        .position(is_marker)
        .map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_marker_is_found_and_nothing_else() {
        for sign in MARKERS {
            let line = format!("{} main", sign.to_string().repeat(7));
            assert_eq!(
                marker(format!("a title\n=======\n{line}\n").as_bytes()),
                Some(3),
                "{line}"
            );
            assert_eq!(marker(format!("quoted: {line}\n").as_bytes()), None, "{line}");
        }
        assert_eq!(marker(b"=======\n<<<<<<<<< nine\n>>>>>>>\n\xff\n"), None);
    }
}
