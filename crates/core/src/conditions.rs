//! Conditions, as the old API wrote them (`lastUpdateTime` beside `lastTransitionTime`) and as Kubernetes expects them
//! (`observedGeneration`, a transition time that moves only with the status). The time is passed in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lenient::{is_default, null_as_default, time_or_none};

/// The types of conditions that the kinds here carry.
pub mod types {
    /// The service answers: quorum is there.
    pub const AVAILABLE: &str = "Available";
    /// Something is being done to come nearer to the spec.
    pub const PROGRESSING: &str = "Progressing";
    /// Something is not as it should be, though the service may answer.
    pub const DEGRADED: &str = "Degraded";
    /// Members are being added or removed.
    pub const SCALING: &str = "Scaling";
    /// Members are being brought to another version.
    pub const UPGRADING: &str = "Upgrading";
    /// Quorum was lost and is being regained.
    pub const RECOVERING: &str = "Recovering";
    /// A backup or restore is done.
    pub const COMPLETE: &str = "Complete";
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::undescribed)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One aspect of the state of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is spoken of, for example Available.
    #[serde(rename = "type", default, deserialize_with = "null_as_default")]
    pub type_: String,
    /// Whether it holds: True, False or Unknown.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: ConditionStatus,
    /// The generation of the spec that this was said of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When anything in this condition last changed.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When the status last changed.
    #[serde(default, deserialize_with = "time_or_none", skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, in one word, for programs.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub reason: String,
    /// Why, in words, for people.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_default")]
    pub message: String,
}

impl Condition {
    /// What a planner knows of a condition; the times are added by [`set`].
    pub fn new(type_: &str, status: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: type_.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.into(),
            ..Self::default()
        }
    }

    /// The same, said of a generation of the spec.
    pub fn observed(mut self, generation: Option<i64>) -> Self {
        self.observed_generation = generation;
        self
    }
}

/// Finds a condition by type.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether a condition is there and true.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.status == ConditionStatus::True)
}

/// Puts `new` in its place. The transition time moves only when the status changes, the update time only when anything
/// does, so that saying the same again changes nothing. Returns whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition, now: &Time) -> bool {
    let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == new.type_) else {
        new.last_update_time = Some(now.clone());
        new.last_transition_time = Some(now.clone());
        conditions.push(new);
        return true;
    };
    let turned = old.status != new.status;
    new.last_transition_time = if turned || old.last_transition_time.is_none() {
        Some(now.clone())
    } else {
        old.last_transition_time.clone()
    };
    new.last_update_time = old.last_update_time.clone();
    if *old == new {
        return false;
    }
    new.last_update_time = Some(now.clone());
    *old = new;
    true
}

/// Puts `new` in its place after the others were set, whatever they said of it. It turns only if it was not so in `old`: what
/// was set in between was never seen.
pub fn turn(conditions: &mut Vec<Condition>, old: &[Condition], new: Condition, now: &Time) {
    if let Some(was) = get(old, &new.type_)
        && let Some(slot) = conditions.iter_mut().find(|condition| condition.type_ == new.type_)
    {
        *slot = was.clone();
    }
    set(conditions, new, now);
}

/// Takes a condition away. Returns whether it was there.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() != before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time(text.parse().expect(text))
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let (first, second, third) = (
            at("2026-01-01T00:00:00Z"),
            at("2026-01-01T00:00:01Z"),
            at("2026-01-01T00:00:02Z"),
        );
        let mut conditions = Vec::new();
        let creating = Condition::new(
            types::AVAILABLE,
            ConditionStatus::False,
            "Creating",
            "first member starts",
        );
        assert!(set(&mut conditions, creating.clone(), &first));

        // the same again: nothing to write
        assert!(!set(&mut conditions, creating, &second));

        // other words: updated, no transition
        let joining = Condition::new(
            types::AVAILABLE,
            ConditionStatus::False,
            "Joining",
            "second member joins",
        );
        assert!(set(&mut conditions, joining, &second));
        assert_eq!(conditions[0].last_transition_time, Some(first));
        assert_eq!(conditions[0].last_update_time, Some(second));

        // another status: both
        let done = Condition::new(types::AVAILABLE, ConditionStatus::True, "Quorum", "").observed(Some(2));
        assert!(set(&mut conditions, done, &third));
        assert_eq!(conditions[0].last_transition_time, Some(third));
        assert!(is_true(&conditions, types::AVAILABLE));
        assert!(remove(&mut conditions, types::AVAILABLE) && conditions.is_empty());
    }

    #[test]
    fn what_an_old_client_sends_back_can_be_read() {
        let json = r#"{"type":"Available","status":"","lastUpdateTime":"","lastTransitionTime":null}"#;
        let condition: Condition = serde_json::from_str(json).expect("readable");
        assert_eq!(condition.status, ConditionStatus::Unknown);
        assert_eq!(condition.last_update_time, None);
    }
}
