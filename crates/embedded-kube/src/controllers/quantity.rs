//! Kubernetes quantities as whole numbers of thousandths, rounded up as Kubernetes does.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// `1.5Gi`, `100m`, `2e3`… in thousandths; `None` if it is no quantity.
pub(crate) fn millis(quantity: &Quantity) -> Option<i128> {
    crate::schema::quantity::Quantity::parse(quantity.0.trim()).map(crate::schema::quantity::Quantity::millis)
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
