//! A pseudo-terminal: our end, to be read and written without blocking, and the end a program gets.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

use crate::streams::TerminalSize;

/// Our end of a terminal, taken apart into what is done with it.
pub(crate) struct Terminal {
    pub(crate) output: Output,
    pub(crate) input: pipe::Sender,
    pub(crate) window: Window,
}

/// What the program writes.
pub(crate) struct Output(pipe::Receiver);

/// The terminal's size.
pub(crate) struct Window(OwnedFd);

impl Terminal {
    /// A new terminal, and the end for the program.
    pub(crate) fn open() -> io::Result<(Self, File)> {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        let name = rustix::pty::ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, rustix::fs::Mode::empty())?;
        let present = rustix::fs::fcntl_getfl(&ours)?;
        rustix::fs::fcntl_setfl(&ours, present | OFlags::NONBLOCK)?;
        // Tokio's pipes read and write any file that can be waited for, a terminal too.
        let output = Output(pipe::Receiver::from_owned_fd_unchecked(ours.try_clone()?)?);
        let input = pipe::Sender::from_owned_fd_unchecked(ours.try_clone()?)?;
        Ok((
            Self {
                output,
                input,
                window: Window(ours),
            },
            theirs.into(),
        ))
    }
}

impl Window {
    pub(crate) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize {
            ws_row: size.height,
            ws_col: size.width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(&self.0, size)?)
    }
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(context, buffer) {
            // The program has closed its end: that is the end of its output.
            Poll::Ready(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}
