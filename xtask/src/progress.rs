//! What a long step is doing: a line that changes on a terminal, a single line elsewhere.

use std::time::Duration;

use indicatif::ProgressBar;

/// A step that is under way; its line goes when this is dropped.
pub(crate) struct Step {
    bar: ProgressBar,
    label: String,
    said: std::cell::Cell<bool>,
}

impl Step {
    /// `label` names what is being made.
    pub(crate) fn new(label: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        Self {
            bar,
            label: label.to_owned(),
            said: std::cell::Cell::new(false),
        }
    }

    /// Shows what it is doing or waiting for now.
    pub(crate) fn say(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.label));
        if self.bar.is_hidden() && !self.said.replace(true) {
            eprintln!("{}: {what}", self.label);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
