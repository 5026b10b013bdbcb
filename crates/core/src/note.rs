//! What users are told in Kubernetes Events.

/// Something worth a Kubernetes Event. `R` are the engine's reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note<R> {
    /// It is a warning.
    pub warning: bool,
    /// Why.
    pub reason: R,
    /// A sentence.
    pub message: String,
}
