//! A container's standard input, for `attach`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use tokio::net::unix::pipe;

/// The writing end of a container's standard input, open from its start so that it waits for whoever attaches.
pub(crate) struct Stdin {
    /// Empty once it was given away.
    end: Mutex<Option<OwnedFd>>,
    /// Whoever attaches first has it alone, and the program sees the end of its input when they leave (`stdinOnce`).
    once: bool,
}

impl Stdin {
    pub(crate) fn new(end: OwnedFd, once: bool) -> Self {
        Self {
            end: Mutex::new(Some(end)),
            once,
        }
    }

    /// An end for somebody who attaches; none when somebody else had the only one.
    pub(crate) fn attach(&self) -> io::Result<Option<pipe::Sender>> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let given = if self.once {
            end.take()
        } else {
            end.as_ref().map(OwnedFd::try_clone).transpose()?
        };
        given.map(pipe::Sender::from_owned_fd).transpose()
    }
}
