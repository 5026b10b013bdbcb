//! The operator's log in the embedded environment, kept in memory for the diagnostics of a failed scenario.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<VecDeque<u8>>>);

const KEPT: usize = 256 << 10;

impl Log {
    /// Sends all logs of this process here.
    pub(crate) fn install() -> Self {
        let log = Self::default();
        let filter = EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| EnvFilter::new("warn,stateward_etcd_driver=debug,stateward_runtime=debug"));
        let _already = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(false)
            .with_writer(log.clone())
            .try_init();
        log
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        let bytes: Vec<u8> = self
            .0
            .lock()
            .map(|kept| kept.iter().copied().collect())
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Ok(mut kept) = self.0.lock() {
            kept.extend(bytes);
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}
