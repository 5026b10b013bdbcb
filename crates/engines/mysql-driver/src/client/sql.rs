//! Pieces of statements: names, texts and accounts, quoted.

use stateward_mysql::names;
use stateward_mysql::world::Ordinal;

/// A text as SQL's literal. Sessions have no `NO_BACKSLASH_ESCAPES`.
pub(crate) fn text(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        match character {
            '\'' => quoted.push_str("\\'"),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\0' => quoted.push_str("\\0"),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// A name of a database, table or variable.
pub(crate) fn name(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A database in a GRANT, where `_` and `%` stand for others.
pub(crate) fn granted(database: &str) -> String {
    name(&database.replace('\\', "\\\\").replace('_', "\\_").replace('%', "\\%"))
}

/// An account that may log in from anywhere.
pub(crate) fn account(user: &str) -> String {
    format!("{}@'%'", text(user))
}

/// The replication account of a member.
pub(crate) fn replication_account(member: Ordinal) -> String {
    account(&names::replication_account(member))
}

/// The member that a replication account is of.
pub(crate) fn member(user: &str) -> Option<Ordinal> {
    let number = user.rsplit('_').next()?.parse().ok().map(Ordinal)?;
    (names::replication_account(number) == user).then_some(number)
}

/// The value of a system variable, as written in my.cnf, in `SET GLOBAL`. Numbers may have a unit there.
pub(crate) fn value(value: &str) -> String {
    let plain = value.trim();
    let is_number = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let dots = digits.bytes().filter(|byte| *byte == b'.').count();
        let fine = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        fine && dots <= 1 && digits.starts_with(|first: char| first.is_ascii_digit()) && !digits.ends_with('.')
    };
    if is_number(plain) {
        return plain.to_owned();
    }
    if let Some(number) = with_unit(plain) {
        return number.to_string();
    }
    match plain.to_ascii_uppercase().as_str() {
        "ON" | "TRUE" => "ON".into(),
        "OFF" | "FALSE" => "OFF".into(),
        _ => text(value),
    }
}

fn with_unit(text: &str) -> Option<u64> {
    let unit = text.chars().next_back()?;
    let shift = match unit.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        'P' => 50,
        'E' => 60,
        _ => return None,
    };
    let number: u64 = text.get(..text.len() - 1)?.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_names_stay_one_piece() {
        assert_eq!(text(r"it's \ a"), r"'it\'s \\ a'");
        assert_eq!(name("a`b"), "`a``b`");
        assert_eq!(granted("my_app"), r"`my\_app`");
        assert_eq!(account("app"), "'app'@'%'");
        assert_eq!(member("stateward_repl_3"), Some(Ordinal(3)));
        assert_eq!(member("app_3"), None);
    }

    #[test]
    fn values_are_numbers_words_or_texts() {
        for (given, written) in [
            ("500", "500"),
            ("-1", "-1"),
            ("0.5", "0.5"),
            ("1G", "1073741824"),
            ("16m", "16777216"),
            ("on", "ON"),
            ("False", "OFF"),
            ("ROW", "'ROW'"),
            ("1.2.3", "'1.2.3'"),
            ("", "''"),
            ("G", "'G'"),
            (".", "'.'"),
        ] {
            assert_eq!(value(given), written, "{given}");
        }
    }
}
