//! Sizes written as Kubernetes writes them (`8Gi`, `500M`, `1e9`), in bytes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Suffixes and what they multiply by; those of two letters first.
const SUFFIXES: [(&str, i128); 14] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("m", 0),
    ("", 1),
];

/// The quantity in bytes, rounded up, or none when it is not a size. Sizes are never negative.
pub fn bytes(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let number_end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '+'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (thousandths, exact) = thousandths(number.strip_prefix('+').unwrap_or(number))?;
    let multiplier = match suffix
        .strip_prefix(['e', 'E'])
        .and_then(|exponent| exponent.parse::<u32>().ok())
    {
        Some(exponent) => 10_i128.checked_pow(exponent)?,
        None => SUFFIXES.iter().find(|(word, _)| *word == suffix)?.1,
    };
    let total = if suffix == "m" {
        thousandths / 1000
    } else {
        thousandths.checked_mul(multiplier)?
    };
    let round_up = i128::from(total % 1000 != 0 || !exact);
    i64::try_from(total / 1000 + round_up).ok()
}

/// The same, for what counts bytes without a sign.
pub fn unsigned_bytes(quantity: &Quantity) -> Option<u64> {
    bytes(quantity).and_then(|bytes| u64::try_from(bytes).ok())
}

/// A decimal number times a thousand, and whether that is all of it.
fn thousandths(number: &str) -> Option<(i128, bool)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.len() > 20 {
        return None;
    }
    let kept: String = fraction.chars().chain("000".chars()).take(3).collect();
    let exact = fraction.chars().skip(3).all(|digit| digit == '0');
    format!("{whole}{kept}").parse().ok().map(|value| (value, exact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("0", 0),
            ("1024", 1024),
            ("1Ki", 1024),
            ("8Gi", 8 << 30),
            ("1.5Gi", 3 << 29),
            (".5Mi", 1 << 19),
            ("+2G", 2_000_000_000),
            ("1e3", 1000),
            ("5E3", 5000),
            ("2E", 2_000_000_000_000_000_000),
            ("1500m", 2),
            ("0.0001", 1),
        ] {
            assert_eq!(bytes(&Quantity(text.into())), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_none() {
        for text in ["", "Gi", "8gi", "eight", "-1Gi", "1.2.3", "8 Gi", "99Ei", "1e400", "."] {
            assert_eq!(bytes(&Quantity(text.into())), None, "{text}");
        }
    }
}
