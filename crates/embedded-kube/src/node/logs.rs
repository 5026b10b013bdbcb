//! Container output: written line by line with timestamps to files in the state folder, read back by the logs API.
//! Bounded: a file is rotated once at [`ROTATE_AT`], and only the present run and the one before are kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{broadcast, mpsc, watch};

use crate::streams::LogOptions;

const ROTATE_AT: u64 = 10 * 1024 * 1024;
const LONGEST_LINE: usize = 16 * 1024;

/// How far the log of one run has come; followers wait on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    written: u64,
    rotations: u64,
    closed: bool,
}

/// The log of one run of one container.
#[derive(Clone)]
pub(crate) struct RunLog {
    path: PathBuf,
    progress: watch::Receiver<Progress>,
    raw: broadcast::Sender<(Channel, Bytes)>,
}

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Out,
    Err,
}

/// The file of one run: `<folder>/<restart count>.log`.
pub(crate) fn file(folder: &Path, run: i32) -> PathBuf {
    folder.join(format!("{run}.log"))
}

fn rotated(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Starts to copy a run's output to its file, and drops the runs before the previous one.
pub(crate) fn record(
    folder: &Path,
    run: i32,
    stdout: impl AsyncRead + Send + Unpin + 'static,
    stderr: impl AsyncRead + Send + Unpin + 'static,
) -> io::Result<RunLog> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.split('.').next())
            .and_then(|n| n.parse::<i32>().ok());
        if number.is_some_and(|number| number < run - 1) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let path = file(folder, run);
    let (sender, progress) = watch::channel(Progress::default());
    let (raw, _) = broadcast::channel(256);
    let mut writer = Writer {
        file: OpenOptions::new().create(true).append(true).open(&path)?,
        path: path.clone(),
        size: 0,
        progress: sender,
    };
    writer.size = writer.file.metadata()?.len();
    let (lines, mut queue) = mpsc::channel::<(Channel, Vec<u8>)>(256);
    tokio::spawn(read_lines(Channel::Out, stdout, lines.clone(), raw.clone()));
    tokio::spawn(read_lines(Channel::Err, stderr, lines, raw.clone()));
    tokio::spawn(async move {
        while let Some((channel, line)) = queue.recv().await {
            if let Err(error) = writer.line(channel, &line) {
                tracing::warn!(path = %writer.path.display(), %error, "a log line could not be written");
            }
        }
        writer.progress.send_modify(|progress| progress.closed = true);
    });
    Ok(RunLog { path, progress, raw })
}

async fn read_lines(
    channel: Channel,
    mut from: impl AsyncRead + Unpin,
    lines: mpsc::Sender<(Channel, Vec<u8>)>,
    raw: broadcast::Sender<(Channel, Bytes)>,
) {
    let mut buffer = vec![0; LONGEST_LINE];
    let mut line = Vec::new();
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        if raw.receiver_count() > 0 {
            let _ = raw.send((channel, Bytes::copy_from_slice(&buffer[..count])));
        }
        for part in buffer[..count].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if (line.ends_with(b"\n") || line.len() >= LONGEST_LINE)
                && lines.send((channel, std::mem::take(&mut line))).await.is_err()
            {
                return;
            }
        }
    }
    if !line.is_empty() {
        let _ = lines.send((channel, line)).await;
    }
}

struct Writer {
    file: File,
    path: PathBuf,
    size: u64,
    progress: watch::Sender<Progress>,
}

impl Writer {
    fn line(&mut self, channel: Channel, line: &[u8]) -> io::Result<()> {
        let name = if channel == Channel::Out { "stdout" } else { "stderr" };
        // The form container runtimes write: time, stream, full or partial line, text.
        let (text, tag) = line.strip_suffix(b"\n").map_or((line, 'P'), |text| (text, 'F'));
        let mut entry = format!("{:.9} {name} {tag} ", jiff::Timestamp::now()).into_bytes();
        entry.extend_from_slice(text);
        entry.push(b'\n');
        self.file.write_all(&entry)?;
        self.size += entry.len() as u64;
        let rotate = self.size >= ROTATE_AT;
        if rotate {
            fs::rename(&self.path, rotated(&self.path))?;
            self.file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            self.size = 0;
        }
        self.progress.send_modify(|progress| {
            progress.written += entry.len() as u64;
            progress.rotations += u64::from(rotate);
        });
        Ok(())
    }
}

impl RunLog {
    /// What the process writes from now on, as it writes it, until it ends.
    pub(crate) fn attach(&self) -> broadcast::Receiver<(Channel, Bytes)> {
        self.raw.subscribe()
    }

    /// Waits until all output is in the file.
    pub(crate) async fn closed(&self) {
        let mut progress = self.progress.clone();
        let _ = progress.wait_for(|progress| progress.closed).await;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The last bytes of a run's text, for `terminationMessagePolicy: FallbackToLogsOnError` and start errors.
pub(crate) fn tail(path: &Path, bytes: usize, lines: usize) -> String {
    let mut text: Vec<u8> = Vec::new();
    for line in last_lines(path, lines) {
        text.extend_from_slice(&line.text);
    }
    let start = text.len().saturating_sub(bytes);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

struct Line {
    time: jiff::Timestamp,
    text: Vec<u8>,
}

fn parse(entry: &[u8]) -> Option<Line> {
    let mut parts = entry.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let _stream = parts.next()?;
    let tag = parts.next()?;
    let mut text = parts.next()?.strip_suffix(b"\n")?.to_vec();
    if tag == b"F" {
        text.push(b'\n');
    }
    Some(Line { time, text })
}

fn last_lines(path: &Path, count: usize) -> Vec<Line> {
    let mut kept = std::collections::VecDeque::new();
    for path in [rotated(path), path.to_path_buf()] {
        let Ok(file) = File::open(path) else { continue };
        let mut reader = BufReader::new(file);
        let mut entry = Vec::new();
        while matches!(reader.read_until(b'\n', &mut entry), Ok(1..)) {
            kept.extend(parse(&entry));
            entry.clear();
            if kept.len() > count {
                kept.pop_front();
            }
        }
    }
    kept.into()
}

/// The text of a run as the logs API sends it. `live` is given while the run goes on; only then is there anything to follow.
pub(crate) fn read(
    path: PathBuf,
    live: Option<&RunLog>,
    options: &LogOptions,
) -> io::Result<BoxStream<'static, io::Result<Bytes>>> {
    let reader = Reader::open(path, live.map(|log| log.progress.clone()), options)?;
    Ok(stream::unfold(reader, |mut reader| async move {
        let next = reader.next().await?;
        Some((next, reader))
    })
    .boxed())
}

struct Reader {
    path: PathBuf,
    /// Present while there is more to wait for.
    progress: Option<watch::Receiver<Progress>>,
    files: std::collections::VecDeque<BufReader<File>>,
    rotations: u64,
    skip: u64,
    since: Option<jiff::Timestamp>,
    left: Option<u64>,
    timestamps: bool,
    entry: Vec<u8>,
    at_line_start: bool,
}

impl Reader {
    fn open(path: PathBuf, progress: Option<watch::Receiver<Progress>>, options: &LogOptions) -> io::Result<Self> {
        let rotations = progress.as_ref().map_or(0, |progress| progress.borrow().rotations);
        let paths = [rotated(&path), path.clone()];
        let mut files = std::collections::VecDeque::new();
        for path in &paths {
            match File::open(path) {
                Ok(file) => files.push_back(BufReader::new(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let skip = match options.tail_lines {
            Some(tail) => {
                let counts = paths.iter().map(|path| File::open(path).map_or(0, count_lines));
                counts.sum::<u64>().saturating_sub(tail)
            }
            None => 0,
        };
        Ok(Self {
            path,
            progress: progress.filter(|_| options.follow),
            files,
            rotations,
            skip,
            since: options.since,
            left: options.limit_bytes,
            timestamps: options.timestamps,
            entry: Vec::new(),
            at_line_start: true,
        })
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut batch = Vec::new();
        loop {
            if self.left == Some(0) {
                return (!batch.is_empty()).then(|| Ok(batch.into()));
            }
            match self.entry() {
                Ok(true) => {
                    self.take_entry(&mut batch);
                    if batch.len() >= 32 * 1024 {
                        return Some(Ok(batch.into()));
                    }
                }
                Ok(false) if !batch.is_empty() => return Some(Ok(batch.into())),
                Ok(false) => {
                    if !self.wait().await {
                        return None;
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads one whole entry into the buffer, if there is one.
    fn entry(&mut self) -> io::Result<bool> {
        while let Some(file) = self.files.front_mut() {
            file.read_until(b'\n', &mut self.entry)?;
            if self.entry.ends_with(b"\n") {
                return Ok(true);
            }
            if self.files.len() == 1 {
                return Ok(false);
            }
            self.files.pop_front();
            self.entry.clear();
        }
        Ok(false)
    }

    fn take_entry(&mut self, batch: &mut Vec<u8>) {
        let parsed = parse(&self.entry);
        self.entry.clear();
        let Some(line) = parsed else { return };
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        if self.since.is_some_and(|since| line.time < since) {
            return;
        }
        let mut text = Vec::new();
        if self.timestamps && self.at_line_start {
            text.extend_from_slice(format!("{:.9} ", line.time).as_bytes());
        }
        self.at_line_start = line.text.ends_with(b"\n");
        text.extend_from_slice(&line.text);
        if let Some(left) = &mut self.left {
            text.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= text.len() as u64;
        }
        batch.extend_from_slice(&text);
    }

    /// Waits for more; false when there will be none.
    async fn wait(&mut self) -> bool {
        let Some(progress) = &mut self.progress else {
            return false;
        };
        let seen = *progress.borrow_and_update();
        if seen.rotations > self.rotations {
            self.rotations = seen.rotations;
            // The old file was read to its end: it is only ever renamed.
            let Ok(file) = File::open(&self.path) else { return false };
            self.files.clear();
            self.files.push_back(BufReader::new(file));
            return true;
        }
        if seen.closed {
            // One more look, since lines may have come between the last look and the end.
            self.progress = None;
            return true;
        }
        let _ = progress.changed().await;
        true
    }
}

fn count_lines(file: File) -> u64 {
    let mut reader = BufReader::new(file);
    let mut count = 0;
    loop {
        let used = match reader.fill_buf() {
            Ok([]) | Err(_) => return count,
            Ok(bytes) => {
                count += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
                bytes.len()
            }
        };
        reader.consume(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn collect(stream: BoxStream<'static, io::Result<Bytes>>) -> String {
        let chunks: Vec<_> = stream.collect().await;
        chunks
            .into_iter()
            .map(|chunk| String::from_utf8(chunk.unwrap().to_vec()).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn options_select_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let log = record(folder.path(), 0, &b"one\ntwo\nthree\nend"[..], &b""[..]).unwrap();
        log.closed().await;
        let read = |options: LogOptions| collect(super::read(log.path().into(), Some(&log), &options).unwrap());
        assert_eq!(read(LogOptions::default()).await, "one\ntwo\nthree\nend");
        assert_eq!(
            read(LogOptions {
                tail_lines: Some(2),
                ..Default::default()
            })
            .await,
            "three\nend"
        );
        assert_eq!(
            read(LogOptions {
                limit_bytes: Some(5),
                ..Default::default()
            })
            .await,
            "one\nt"
        );
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        assert_eq!(
            read(LogOptions {
                since: Some(later),
                ..Default::default()
            })
            .await,
            ""
        );
        let stamped = read(LogOptions {
            timestamps: true,
            tail_lines: Some(1),
            ..Default::default()
        })
        .await;
        let (time, text) = stamped.split_once(' ').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && text == "end", "{stamped}");
        assert_eq!(
            read(LogOptions {
                follow: true,
                ..Default::default()
            })
            .await,
            "one\ntwo\nthree\nend"
        );
    }

    #[tokio::test]
    async fn following_sees_new_lines_and_ends_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let (mut input, output) = tokio::io::duplex(64);
        let log = record(folder.path(), 0, output, &b""[..]).unwrap();
        input.write_all(b"first\n").await.unwrap();
        let mut followed = super::read(
            log.path().into(),
            Some(&log),
            &LogOptions {
                follow: true,
                ..Default::default()
            },
        )
        .unwrap();
        assert_eq!(followed.next().await.unwrap().unwrap(), "first\n");
        input.write_all(b"second\n").await.unwrap();
        assert_eq!(followed.next().await.unwrap().unwrap(), "second\n");
        drop(input);
        assert!(followed.next().await.is_none());
    }

    #[tokio::test]
    async fn logs_stay_bounded() {
        // Given three files' worth of output
        let folder = tempfile::tempdir().unwrap();
        let line = [b'x'; 1023];
        let text = [&line[..], b"\n"].concat().repeat(3 * 10 * 1024);
        let log = record(folder.path(), 4, std::io::Cursor::new(text), &b""[..]).unwrap();
        log.closed().await;
        let size: u64 = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size <= 2 * ROTATE_AT + 2048, "{size}");
        // When two further runs follow, then only the last two remain
        for run in [5, 6] {
            record(folder.path(), run, &b"x\n"[..], &b""[..])
                .unwrap()
                .closed()
                .await;
        }
        assert!(!file(folder.path(), 4).exists() && file(folder.path(), 5).exists());
        assert_eq!(tail(&file(folder.path(), 6), 100, 80), "x\n");
    }
}
