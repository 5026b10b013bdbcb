//! SPDY/3.1, the server's side, as much of it as Kubernetes clients use: streams that the client opens, data both ways,
//! pings. Flow control is not used by them (their library ignores windows), so there is none here either; buffers are
//! bounded because the reader waits for the receiver of its events.

use std::collections::{BTreeMap, HashSet};
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::dictionary::dictionary;

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FINISHED: u8 = 1;
/// RST_STREAM's "refused".
const REFUSED: u32 = 3;

/// The limit of a control frame, which has a few headers only.
const MOST_CONTROL: usize = 64 * 1024;
/// The limit of decompressed headers: a small block can become large.
const MOST_HEADERS: usize = 256 * 1024;
/// Streams open at once: two for each forwarded connection.
const MOST_STREAMS: usize = 1024;

/// What the client did.
#[derive(Debug)]
pub(super) enum Event {
    Opened {
        id: u32,
        headers: BTreeMap<String, String>,
        finished: bool,
    },
    Data(u32, Bytes),
    /// It will send no more on this stream.
    Closed(u32),
}

/// One connection. The events end when the client disconnects.
pub(super) struct Session {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) writer: Writer,
}

enum Command {
    Accept(u32),
    Data(u32, Bytes),
    Finish(u32),
    Reset(u32),
    Pong(u32),
}

/// Sends to the client. What cannot be sent any more is dropped: the end of the events shows that the client
/// disconnected.
#[derive(Clone)]
pub(super) struct Writer(mpsc::Sender<Command>);

impl Writer {
    pub(super) async fn accept(&self, id: u32) {
        let _ = self.0.send(Command::Accept(id)).await;
    }

    pub(super) async fn data(&self, id: u32, bytes: Bytes) {
        let _ = self.0.send(Command::Data(id, bytes)).await;
    }

    /// Ends the sending side of this stream. Repeating it does no harm.
    pub(super) async fn finish(&self, id: u32) {
        let _ = self.0.send(Command::Finish(id)).await;
    }

    pub(super) async fn reset(&self, id: u32) {
        let _ = self.0.send(Command::Reset(id)).await;
    }
}

/// Runs SPDY on this socket until either side ends it.
pub(super) fn start<S>(socket: S) -> Session
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(socket);
    let (event, events) = mpsc::channel(32);
    let (command, commands) = mpsc::channel(32);
    let pong = command.clone();
    tokio::spawn(async move {
        let reading = read(reader, &event, &pong);
        tokio::select! {
            result = reading => {
                if let Err(error) = result {
                    tracing::debug!(%error, "SPDY connection ended");
                }
            }
            // The receiver was dropped.
            () = event.closed() => {}
        }
    });
    tokio::spawn(async move {
        if let Err(error) = write(writer, commands).await {
            tracing::debug!(%error, "SPDY connection ended");
        }
    });
    Session {
        events,
        writer: Writer(command),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

async fn read<R: AsyncRead>(
    reader: R,
    events: &mpsc::Sender<Event>,
    commands: &mpsc::Sender<Command>,
) -> io::Result<()> {
    let mut reader = std::pin::pin!(reader);
    let mut headers = HeaderReader::new()?;
    let mut open: HashSet<u32> = HashSet::new();
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    loop {
        let mut head = [0; 8];
        match reader.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        };
        let (flags, length) = (head[4], (&head[5..8]).get_uint(3) as usize);
        if head[0] & 0x80 == 0 {
            let id = (&head[..4]).get_u32();
            forward_data(&mut reader, id, length, open.contains(&id), events).await?;
            if flags & FINISHED != 0 && open.remove(&id) {
                events.send(Event::Closed(id)).await.map_err(|_| gone())?;
            }
            continue;
        }
        if (&head[..2]).get_u16() != VERSION || length > MOST_CONTROL {
            return Err(invalid("not a SPDY/3 control frame, or one too large"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await?;
        let mut body = body.as_slice();
        match (&head[2..4]).get_u16() {
            SYN_STREAM => {
                if body.len() < 10 {
                    return Err(invalid("a SYN_STREAM that is too short"));
                }
                let id = body.get_u32() & 0x7fff_ffff;
                body.advance(6);
                let found = headers.read(body)?;
                if open.len() >= MOST_STREAMS || !open.insert(id) {
                    commands.send(Command::Reset(id)).await.map_err(|_| gone())?;
                    continue;
                }
                let finished = flags & FINISHED != 0;
                if finished {
                    open.remove(&id);
                }
                events
                    .send(Event::Opened {
                        id,
                        headers: found,
                        finished,
                    })
                    .await
                    .map_err(|_| gone())?;
            }
            RST_STREAM if body.len() >= 4 => {
                let id = body.get_u32() & 0x7fff_ffff;
                if open.remove(&id) {
                    events.send(Event::Closed(id)).await.map_err(|_| gone())?;
                }
            }
            PING if body.len() >= 4 => {
                // Only the client's own pings are odd; even ones would be replies to ours.
                let id = body.get_u32();
                if id % 2 == 1 {
                    commands.send(Command::Pong(id)).await.map_err(|_| gone())?;
                }
            }
            GOAWAY => return Ok(()),
            // SETTINGS, HEADERS, WINDOW_UPDATE: nothing here depends on them. HEADERS would be compressed in the same
            // stream, but no client sends it.
            _ => {}
        }
    }
}

/// In pieces, so that a large frame needs no large buffer.
async fn forward_data<R: AsyncRead + Unpin>(
    reader: &mut R,
    id: u32,
    mut length: usize,
    wanted: bool,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    while length > 0 {
        let mut buffer = BytesMut::zeroed(length.min(32 * 1024));
        reader.read_exact(&mut buffer).await?;
        length -= buffer.len();
        if wanted {
            let sent = events.send(Event::Data(id, buffer.freeze())).await;
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
    }
    Ok(())
}

async fn write<W: AsyncWrite>(writer: W, mut commands: mpsc::Receiver<Command>) -> io::Result<()> {
    let mut writer = std::pin::pin!(writer);
    let mut compress = Compress::new(Compression::fast(), true);
    let mut finished: HashSet<u32> = HashSet::new();
    while let Some(command) = commands.recv().await {
        let frame = match command {
            Command::Accept(id) => {
                let mut body = BytesMut::new();
                body.put_u32(id);
                body.extend(empty_headers(&mut compress)?);
                control(SYN_REPLY, &body)
            }
            Command::Data(id, _) | Command::Finish(id) if finished.contains(&id) => continue,
            Command::Data(id, bytes) => {
                for chunk in bytes.chunks(0xff_ffff) {
                    writer.write_all(&data_head(id, 0, chunk.len())).await?;
                    writer.write_all(chunk).await?;
                }
                writer.flush().await?;
                continue;
            }
            Command::Finish(id) => {
                finished.insert(id);
                data_head(id, FINISHED, 0)
            }
            Command::Reset(id) => {
                let mut body = BytesMut::new();
                body.put_u32(id);
                body.put_u32(REFUSED);
                control(RST_STREAM, &body)
            }
            Command::Pong(id) => control(PING, &id.to_be_bytes()),
        };
        writer.write_all(&frame).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}

fn data_head(id: u32, flags: u8, length: usize) -> Bytes {
    let mut head = BytesMut::new();
    head.put_u32(id);
    head.put_u8(flags);
    head.put_uint(length as u64, 3);
    head.freeze()
}

fn control(kind: u16, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u16(VERSION);
    frame.put_u16(kind);
    frame.put_u8(0);
    frame.put_uint(body.len() as u64, 3);
    frame.put_slice(body);
    frame.freeze()
}

/// A header block without headers. The dictionary need not be used when writing: a zlib stream says whether it is.
fn empty_headers(compress: &mut Compress) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64);
    compress
        .compress_vec(&0u32.to_be_bytes(), &mut out, FlushCompress::Sync)
        .map_err(io::Error::other)?;
    Ok(out)
}

/// All header blocks of a connection are one zlib stream, started with SPDY's dictionary.
struct HeaderReader {
    inflate: Decompress,
    begun: bool,
}

impl HeaderReader {
    /// The dictionary is given to a raw inflater as a stored block whose output is dropped: what follows can then refer
    /// back into it. (Setting a dictionary as such needs a C library.)
    fn new() -> io::Result<Self> {
        let words = dictionary();
        let length = words.len() as u16;
        let mut block = vec![0];
        block.extend(length.to_le_bytes());
        block.extend((!length).to_le_bytes());
        block.extend(&words);
        let mut reader = HeaderReader {
            inflate: Decompress::new(false),
            begun: false,
        };
        let echoed = reader.inflate(&block)?;
        if echoed != words {
            return Err(invalid("the dictionary was not taken"));
        }
        Ok(reader)
    }

    fn inflate(&mut self, mut input: &[u8]) -> io::Result<Vec<u8>> {
        let mut output = Vec::with_capacity(4096);
        loop {
            let before = (self.inflate.total_in(), output.len());
            self.inflate
                .decompress_vec(input, &mut output, FlushDecompress::Sync)
                .map_err(io::Error::other)?;
            input = &input[(self.inflate.total_in() - before.0) as usize..];
            if output.len() > MOST_HEADERS {
                return Err(invalid("headers that are too large"));
            }
            if output.len() < output.capacity()
                && (input.is_empty() || before == (self.inflate.total_in(), output.len()))
            {
                return Ok(output);
            }
            output.reserve(4096);
        }
    }

    fn read(&mut self, mut block: &[u8]) -> io::Result<BTreeMap<String, String>> {
        if !self.begun {
            // The zlib header, two bytes, and, if it says so, the dictionary's checksum, four.
            let skip = match block {
                [_, flags, ..] if flags & 0x20 != 0 => 6,
                _ => 2,
            };
            block = block
                .get(skip..)
                .ok_or_else(|| invalid("a header block that is too short"))?;
            self.begun = true;
        }
        let text = self.inflate(block)?;
        parse(&text).ok_or_else(|| invalid("a header block that cannot be read"))
    }
}

fn parse(mut text: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut headers = BTreeMap::new();
    let count = text.try_get_u32().ok()?;
    for _ in 0..count {
        let mut next = || -> Option<String> {
            let length = text.try_get_u32().ok()? as usize;
            let part = text.get(..length)?;
            text.advance(length);
            Some(String::from_utf8_lossy(part).into_owned())
        };
        headers.insert(next()?.to_ascii_lowercase(), next()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by zlib itself with SPDY's dictionary, as one stream.
    #[test]
    fn header_blocks_compressed_with_the_dictionary_are_read_in_sequence() {
        let blocks = [
            (
                "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a080c652c670c2bd8a9149182b00000000ffff",
                "error",
            ),
            ("0265340ca380893f251f5ca6e3360b000000ffff", "stdout"),
        ];
        let mut reader = HeaderReader::new().unwrap();
        for (block, kind) in blocks {
            let bytes: Vec<u8> = (0..block.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&block[at..at + 2], 16).unwrap())
                .collect();
            let headers = reader.read(&bytes).unwrap();
            assert_eq!(headers.get("streamtype").map(String::as_str), Some(kind), "{headers:?}");
        }
    }

    #[tokio::test]
    async fn nonsense_and_oversized_frames_end_the_connection() {
        for frame in [
            &[0x80, 2, 0, 1, 0, 0, 0, 0][..],
            &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
            &[0x80, 3, 0, 1, 0, 0, 0, 3, 1, 2, 3],
        ] {
            let (mut client, server) = tokio::io::duplex(1024);
            let mut session = start(server);
            client.write_all(frame).await.unwrap();
            assert!(session.events.recv().await.is_none());
        }
    }

    #[tokio::test]
    async fn pings_are_answered_and_data_is_passed_in_order() {
        let (mut client, server) = tokio::io::duplex(1024);
        let session = start(server);
        let ping = control(PING, &7u32.to_be_bytes());
        client.write_all(&ping).await.unwrap();
        let mut answer = vec![0; ping.len()];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, ping);
        session.writer.data(1, Bytes::from_static(b"ab")).await;
        session.writer.finish(1).await;
        session.writer.finish(1).await;
        drop(session);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, [0, 0, 0, 1, 0, 0, 0, 2, b'a', b'b', 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}
