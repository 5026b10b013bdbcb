//! Quantities such as `500m`, `1Gi` and `2e3`, exact to the nano as Kubernetes stores them.

/// A quantity in units of 10⁻⁹.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Reads a quantity; `None` when the text is not one or is too large to hold.
    pub(crate) fn parse(text: &str) -> Option<Quantity> {
        let (negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = digits
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (numerator, denominator) = scale(suffix)?;
        let mut value: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        value = value.checked_mul(NANO)?;
        let mut unit = NANO / 10;
        for digit in fraction.bytes() {
            value = value.checked_add(i128::from(digit - b'0') * unit)?;
            unit /= 10;
        }
        value = value.checked_mul(numerator)?;
        // Kubernetes rounds up to whole nanos.
        value = value.checked_add(denominator - 1)? / denominator;
        Some(Quantity(if negative { -value } else { value }))
    }

    /// The value as a whole number, when it is one that fits.
    pub(crate) fn as_integer(self) -> Option<i64> {
        if self.0 % NANO != 0 {
            None
        } else {
            i64::try_from(self.0 / NANO).ok()
        }
    }

    /// The value as the nearest float.
    pub(crate) fn as_float(self) -> f64 {
        self.0 as f64 / NANO as f64
    }

    /// In thousandths, rounded up, as amounts of processor time are counted.
    pub(crate) fn millis(self) -> i128 {
        const MILLI: i128 = NANO / 1_000;
        let up = (self.0.abs() + MILLI - 1) / MILLI;
        up * self.0.signum()
    }

    pub(crate) fn of(integer: i64) -> Quantity {
        Quantity(i128::from(integer) * NANO)
    }

    pub(crate) fn checked_add(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_add(other.0).map(Quantity)
    }

    pub(crate) fn checked_sub(self, other: Quantity) -> Option<Quantity> {
        self.0.checked_sub(other.0).map(Quantity)
    }
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
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
            let power = 10_i128.checked_pow(exponent.unsigned_abs().min(30))?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_suffix() {
        for (text, value) in [
            ("1", 1.0),
            ("500m", 0.5),
            ("1.5Gi", 1.5 * 1024.0 * 1024.0 * 1024.0),
            ("2e3", 2000.0),
            ("1E", 1e18),
            ("-3k", -3000.0),
            ("100n", 1e-7),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e-3", 0.001),
        ] {
            assert_eq!(Quantity::parse(text).map(Quantity::as_float), Some(value), "{text}");
        }
        for text in ["", "x", "1.2.3", "1Zi", "1 Gi", "Gi", "--1", "1e", "é"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
        assert_eq!(Quantity::parse("1Ki"), Quantity::parse("1024"));
        assert_eq!(Quantity::parse("1.5").and_then(Quantity::as_integer), None);
    }
}
