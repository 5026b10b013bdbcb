//! Compressed and encrypted files, as streams. A packed file tells itself from its first bytes; any other is passed on as
//! it is, so that etcdutl alone can read a plain backup.
//!
//! `"STATEWARD\0\1"`, one byte of flags (1: zstd, 2: encrypted), for encrypted files salt and check value, then the
//! content: compressed first, encrypted after. A database of bbolt begins with zeros and is never mistaken for one.

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};

use crate::crypt::{CHECK, Closed, Key, KeyError, Opener, SALT, SEALED, Sealer};

const MAGIC: &[u8] = b"STATEWARD\0\x01";
/// Magic and flags.
const HEADER: usize = MAGIC.len() + 1;
const ZSTD: u8 = 1;
const ENCRYPTED: u8 = 2;
/// What one turn of the decompressor gives at most.
const OUT: usize = 256 << 10;
/// zstd's own default: a good third off a database, faster than a network.
const LEVEL: i32 = 3;

/// How to pack.
#[derive(Clone, Debug, Default)]
pub struct Packing {
    /// Compress with zstd.
    pub zstd: bool,
    /// Encrypt with this key.
    pub key: Option<Key>,
}

impl Packing {
    /// Whether files stay as they are.
    pub fn is_plain(&self) -> bool {
        !self.zstd && self.key.is_none()
    }
}

/// Why a file cannot be unpacked, or the stream beneath it not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError<E> {
    /// The stream beneath.
    #[error("{0}")]
    Source(E),
    /// It is encrypted and there is no key.
    #[error("the file is encrypted and no key is given: name the secret with the key it was encrypted with")]
    KeyMissing,
    /// It is encrypted with another key.
    #[error("the file is encrypted with another key: name the secret with the key it was encrypted with")]
    WrongKey,
    /// It is harmed or cut off.
    #[error("the file is harmed or cut off: {0}")]
    Harmed(&'static str),
}

/// Whether a file that begins like this is packed.
pub fn is_packed(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

struct Packer<S> {
    source: std::pin::Pin<Box<S>>,
    zstd: Option<Encoder<'static>>,
    sealer: Option<Sealer>,
    head: Option<Vec<u8>>,
    ended: bool,
}

/// Packs a stream. Without compression and encryption it is passed on as it is.
pub fn pack<E, S>(
    source: S,
    packing: &Packing,
) -> Result<impl Stream<Item = Result<Bytes, E>> + Send + use<E, S>, KeyError>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Send + 'static,
{
    let mut flags = 0;
    let mut head = None;
    let (mut zstd, mut sealer) = (None, None);
    if packing.zstd {
        flags |= ZSTD;
        let mut encoder = Encoder::new(LEVEL).map_err(|_| KeyError::Crypto)?;
        let _supported = encoder.set_parameter(zstd::stream::raw::CParameter::ChecksumFlag(true));
        zstd = Some(encoder);
    }
    if packing.key.is_some() {
        flags |= ENCRYPTED;
    }
    if flags != 0 {
        let mut bytes = [MAGIC, &[flags]].concat();
        if let Some(key) = &packing.key {
            let (made, behind) = Sealer::new(key, &bytes)?;
            sealer = Some(made);
            bytes.extend_from_slice(&behind);
        }
        head = Some(bytes);
    }
    let state = Packer {
        source: Box::pin(source),
        zstd,
        sealer,
        head,
        ended: false,
    };
    Ok(futures::stream::unfold(state, |mut state| async move {
        loop {
            if state.ended {
                return None;
            }
            let item = match state.source.next().await {
                Some(Ok(piece)) if state.zstd.is_none() && state.sealer.is_none() => return Some((Ok(piece), state)),
                Some(Ok(piece)) => state.step(&piece, false),
                Some(Err(error)) => {
                    state.ended = true;
                    return Some((Err(error), state));
                }
                None => {
                    state.ended = true;
                    state.step(&[], true)
                }
            };
            if !item.is_empty() {
                return Some((Ok(Bytes::from(item)), state));
            }
        }
    }))
}

impl<S> Packer<S> {
    /// Neither step can fail on what it is given: zstd writes to a buffer that grows, sealing takes any text.
    fn step(&mut self, piece: &[u8], last: bool) -> Vec<u8> {
        let mut out = self.head.take().unwrap_or_default();
        let squeezed = match &mut self.zstd {
            Some(encoder) => squeeze(encoder, piece, last),
            None => piece.to_vec(),
        };
        match &mut self.sealer {
            None => out.extend_from_slice(&squeezed),
            Some(sealer) => {
                let _infallible = sealer.push(&squeezed, &mut out);
                if last {
                    let _infallible = sealer.finish(&mut out);
                }
            }
        }
        out
    }
}

fn squeeze(encoder: &mut Encoder<'static>, piece: &[u8], last: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut room = vec![0; zstd::zstd_safe::CCtx::out_size()];
    let mut input = InBuffer::around(piece);
    while input.pos() < piece.len() {
        let mut output = OutBuffer::around(&mut room[..]);
        if encoder.run(&mut input, &mut output).is_err() {
            break;
        }
        out.extend_from_slice(output.as_slice());
    }
    let mut ending = last;
    while ending {
        let mut output = OutBuffer::around(&mut room[..]);
        let left = encoder.finish(&mut output, true).unwrap_or(0);
        out.extend_from_slice(output.as_slice());
        ending = left != 0;
    }
    out
}

/// What was found at the head of the file.
enum Kind {
    Unknown,
    Plain,
    Packed {
        opener: Option<Box<Opener>>,
        zstd: Option<Box<Decoder<'static>>>,
    },
}

struct Unpacker<S> {
    source: std::pin::Pin<Box<S>>,
    key: Option<Key>,
    kind: Kind,
    /// As stored, not opened yet.
    raw: BytesMut,
    /// Opened, not decompressed yet.
    opened: BytesMut,
    source_ended: bool,
    /// The last sealed chunk was opened.
    sealed_end: bool,
    /// zstd is between two frames.
    frame_end: bool,
    /// The decompressor filled its room: it may hold more without further input.
    holds: bool,
    done: bool,
}

/// Undoes [`pack`], in bounded memory whatever the file says of itself. The stream ends in an error unless all of it
/// was there.
pub fn unpack<E, S>(source: S, key: Option<Key>) -> impl Stream<Item = Result<Bytes, UnpackError<E>>> + Send + use<E, S>
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Send + 'static,
{
    let state = Unpacker {
        source: Box::pin(source),
        key,
        kind: Kind::Unknown,
        raw: BytesMut::new(),
        opened: BytesMut::new(),
        source_ended: false,
        sealed_end: false,
        frame_end: false,
        holds: false,
        done: false,
    };
    futures::stream::unfold(state, |mut state| async move {
        loop {
            if state.done {
                return None;
            }
            match state.turn() {
                Ok(Some(piece)) => return Some((Ok(piece), state)),
                Ok(None) if state.done => return None,
                Ok(None) => {}
                Err(error) => {
                    state.done = true;
                    return Some((Err(error), state));
                }
            }
            match state.source.next().await {
                // What is not packed goes through untouched.
                Some(Ok(piece)) if matches!(state.kind, Kind::Plain) => return Some((Ok(piece), state)),
                Some(Ok(piece)) => state.raw.extend_from_slice(&piece),
                Some(Err(error)) => {
                    state.done = true;
                    return Some((Err(UnpackError::Source(error)), state));
                }
                None => state.source_ended = true,
            }
        }
    })
}

impl<S> Unpacker<S> {
    /// A piece of the content, or none: then more is needed from the source, or all is done.
    fn turn<E>(&mut self) -> Result<Option<Bytes>, UnpackError<E>> {
        if matches!(self.kind, Kind::Unknown) && !self.recognise()? {
            return Ok(None);
        }
        let (opener, zstd) = match &mut self.kind {
            Kind::Unknown => return Ok(None),
            Kind::Plain => {
                self.done = self.source_ended && self.raw.is_empty();
                let piece = self.raw.split().freeze();
                return Ok(Some(piece).filter(|piece| !piece.is_empty()));
            }
            Kind::Packed { opener, zstd } => (opener, zstd),
        };
        loop {
            if let Some(decoder) = zstd {
                if !self.opened.is_empty() || self.holds {
                    let piece = expand(decoder, &mut self.opened, &mut self.frame_end, &mut self.holds)
                        .map_err(|()| UnpackError::Harmed("it does not decompress"))?;
                    if !piece.is_empty() {
                        return Ok(Some(piece));
                    }
                    continue;
                }
            } else if !self.opened.is_empty() {
                return Ok(Some(self.opened.split().freeze()));
            }
            let more = match opener {
                None => {
                    std::mem::swap(&mut self.opened, &mut self.raw);
                    !self.opened.is_empty()
                }
                Some(opener) => {
                    let full = self.raw.len() > SEALED;
                    let last = self.source_ended && !self.raw.is_empty() && !full;
                    if full || last {
                        let mut chunk = self.raw.split_to(self.raw.len().min(SEALED));
                        let plain = opener
                            .open(&mut chunk, last)
                            .map_err(|_| UnpackError::Harmed("a part of it was changed, or its end is missing"))?;
                        self.opened.extend_from_slice(plain);
                        self.sealed_end = last;
                    }
                    full || last
                }
            };
            if more {
                continue;
            }
            if self.source_ended {
                if opener.is_some() && !self.sealed_end {
                    return Err(UnpackError::Harmed("its end is missing"));
                }
                if zstd.is_some() && !self.frame_end {
                    return Err(UnpackError::Harmed("its end is missing"));
                }
                self.done = true;
            }
            return Ok(None);
        }
    }

    /// Reads the head once enough is there.
    fn recognise<E>(&mut self) -> Result<bool, UnpackError<E>> {
        let begin = self.raw.len().min(MAGIC.len());
        if self.raw[..begin] != MAGIC[..begin] {
            self.kind = Kind::Plain;
            return Ok(true);
        }
        if self.raw.len() < HEADER {
            if self.source_ended {
                self.kind = Kind::Plain;
            }
            return Ok(self.source_ended);
        }
        let flags = self.raw[HEADER - 1];
        if flags == 0 || flags & !(ZSTD | ENCRYPTED) != 0 {
            return Err(UnpackError::Harmed("it was packed in a way that is not known here"));
        }
        let encrypted = flags & ENCRYPTED != 0;
        if encrypted && self.raw.len() < HEADER + SALT + CHECK {
            if self.source_ended {
                return Err(UnpackError::Harmed("its end is missing"));
            }
            return Ok(false);
        }
        let header = self.raw.split_to(HEADER);
        let opener = if encrypted {
            let key = self.key.as_ref().ok_or(UnpackError::KeyMissing)?;
            let opener = Opener::new(key, &header, &self.raw[..SALT], &self.raw[SALT..SALT + CHECK]);
            self.raw.advance(SALT + CHECK);
            Some(opener.map(Box::new).map_err(|closed| match closed {
                Closed::WrongKey => UnpackError::WrongKey,
                Closed::Harmed => UnpackError::Harmed("its key cannot be derived"),
            })?)
        } else {
            None
        };
        let zstd = if flags & ZSTD != 0 {
            let decoder = Decoder::new().map_err(|_| UnpackError::Harmed("the decompressor does not start"))?;
            Some(Box::new(decoder))
        } else {
            None
        };
        self.kind = Kind::Packed { opener, zstd };
        Ok(true)
    }
}

fn expand(
    decoder: &mut Decoder<'static>,
    from: &mut BytesMut,
    frame_end: &mut bool,
    holds: &mut bool,
) -> Result<Bytes, ()> {
    let mut room = vec![0; OUT];
    let (read, written) = {
        let mut input = InBuffer::around(&from[..]);
        let mut output = OutBuffer::around(&mut room[..]);
        let left = decoder.run(&mut input, &mut output).map_err(|_| ())?;
        *frame_end = left == 0;
        (input.pos(), output.pos())
    };
    // After a frame's end zstd asks for nothing more; what it holds back otherwise comes when it has room again.
    *holds = written == OUT && !*frame_end;
    from.advance(read);
    room.truncate(written);
    Ok(Bytes::from(room))
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use proptest::prelude::*;

    use super::*;

    type Packed = Result<Vec<u8>, UnpackError<String>>;

    fn key(byte: u8) -> Key {
        Key::read(&[byte; 32]).expect("a key")
    }

    fn pieces(bytes: &[u8], size: usize) -> impl Stream<Item = Result<Bytes, String>> + Send + 'static {
        let all: Vec<_> = bytes
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        futures::stream::iter(all)
    }

    fn packed(bytes: &[u8], packing: &Packing, size: usize) -> Vec<u8> {
        let stream = pack(pieces(bytes, size), packing).expect("packing");
        let all: Vec<Bytes> = futures::executor::block_on(stream.try_collect()).expect("no error");
        all.concat()
    }

    fn unpacked(bytes: &[u8], key: Option<Key>, size: usize) -> Packed {
        let stream = unpack(pieces(bytes, size), key);
        let all: Vec<Bytes> = futures::executor::block_on(stream.try_collect())?;
        Ok(all.concat())
    }

    fn every_way() -> Vec<Packing> {
        let mut all = Vec::new();
        for zstd in [false, true] {
            for key in [None, Some(key(1))] {
                all.push(Packing { zstd, key });
            }
        }
        all
    }

    #[test]
    fn everything_comes_back_and_plain_is_untouched() {
        let mut text: Vec<u8> = (0..300_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        text.extend_from_slice(&[0; 3_000_000]);
        for length in [0, 1, 10, 65_535, 65_536, 65_537, 131_072, text.len()] {
            for packing in every_way() {
                let stored = packed(&text[..length], &packing, 32_768);
                if !packing.zstd && packing.key.is_none() {
                    assert_eq!(stored, &text[..length]);
                }
                for size in [7_000, 65_552, 1 << 20] {
                    let back = unpacked(&stored, packing.key.clone(), size).expect("unpacked");
                    assert!(back == text[..length], "{packing:?} {length} {size}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_key_is_told_apart() {
        let stored = packed(b"text", &every_way()[1], 10);
        assert_eq!(unpacked(&stored, Some(key(2)), 9), Err(UnpackError::WrongKey));
        assert_eq!(unpacked(&stored, None, 9), Err(UnpackError::KeyMissing));
    }

    #[test]
    fn chunks_cannot_be_cut_or_moved() {
        let text = vec![7; 200_000];
        let packing = &every_way()[1];
        let stored = packed(&text, packing, 1000);
        let head = HEADER + SALT + CHECK;
        let mut swapped = stored[..head].to_vec();
        swapped.extend_from_slice(&stored[head + SEALED..head + 2 * SEALED]);
        swapped.extend_from_slice(&stored[head..head + SEALED]);
        swapped.extend_from_slice(&stored[head + 2 * SEALED..]);
        for bad in [
            &stored[..head],
            &stored[..head + SEALED],
            &stored[..head + 2 * SEALED],
            &swapped,
        ] {
            let back = unpacked(bad, packing.key.clone(), 5000);
            assert!(matches!(back, Err(UnpackError::Harmed(_))), "{back:?}");
        }
    }

    #[test]
    fn keys_are_bytes_or_base64() {
        assert!(Key::read(&[3; 32]).is_ok());
        assert!(Key::read(b"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\n").is_ok());
        assert_eq!(Key::read(b"short").map(|_| ()), Err(KeyError::Length));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn harmed_files_never_pass(at in 0_usize..20_000, bit in 0_u8..8, cut in any::<bool>(), way in 1_usize..4) {
            let text: Vec<u8> = (0..20_000_u32).flat_map(|n| (n * n).to_le_bytes()).collect();
            let packing = &every_way()[way];
            let mut stored = packed(&text, packing, 9_000);
            let at = at % stored.len();
            if cut { stored.truncate(at) } else { stored[at] ^= 1 << bit }
            // A harmed magic makes it a plain file, which is for the reader of the content to judge.
            match unpacked(&stored, packing.key.clone(), 3_000) {
                Ok(back) => prop_assert!(back != text),
                Err(error) => prop_assert!(!matches!(error, UnpackError::Source(_))),
            }
        }
    }
}
