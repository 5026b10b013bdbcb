//! Kubernetes quantities as whole numbers of thousandths, rounded up as Kubernetes does.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// `1.5Gi`, `100m`, `2e3`… in thousandths; `None` for what is no quantity.
pub(crate) fn millis(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (numerator, denominator): (i128, i128) = match suffix {
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "" => (1, 1),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    };
    let negative = number.starts_with('-');
    let number = number.trim_start_matches(['+', '-']);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || fraction.len() > 18 {
        return None;
    }
    let scale = 10i128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let value = digits.checked_mul(numerator)?.checked_mul(1000)?;
    let divisor = scale.checked_mul(denominator)?;
    let rounded = value.checked_add(divisor - 1)? / divisor;
    Some(if negative { -rounded } else { rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("0.5", Some(500)),
            ("1.5Ki", Some(1_536_000)),
            ("1Gi", Some(1_073_741_824_000)),
            ("2e3", Some(2_000_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("1n", Some(1)),
            ("-3", Some(-3000)),
            ("", None),
            ("abc", None),
            ("1.2.3", None),
            ("1e99", None),
        ] {
            assert_eq!(millis(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
