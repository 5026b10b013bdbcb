//! The services and the disruption budget, made before anything needs them and mended when they differ.

use super::{Effect, View};

pub(super) fn services(view: &View<'_>) -> Vec<Effect> {
    let (is, should) = (&view.world.services, &view.intent.services);
    let mut effects = Vec::new();
    if is.peer.as_ref() != Some(&should.peer) {
        effects.push(Effect::ApplyPeerService);
    }
    if is.client.as_ref() != Some(&should.client) {
        effects.push(Effect::ApplyClientService);
    }
    if is.budget.as_ref() != Some(&should.budget) {
        effects.push(Effect::ApplyBudget);
    }
    effects
}

#[cfg(test)]
mod tests {
    use crate::cluster::Reason;
    use crate::cluster::testing::three;

    #[test]
    fn what_differs_is_applied_again() {
        three().then(Reason::AsExpected, &[]);
        let given = three().world(|world| {
            world.services.peer = None;
            world.services.budget = Some("edited by hand".into());
        });
        given.then(
            Reason::AsExpected,
            &["apply the peer service", "apply the disruption budget"],
        );
    }
}
