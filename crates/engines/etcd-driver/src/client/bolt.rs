//! Opens a database of bbolt while it streams by: every page that the newest meta page reaches must be there, be what its
//! parent takes it for, and be reached once. Keys are counted as `etcdutl snapshot status` counts them.
//!
//! Pages lie in the file in no particular order, and free ones still hold what they held before. So each page is noted as
//! it passes, in a few bytes, and the tree is walked over the notes when all have passed. Memory is bounded by the number
//! of pages, some 20 bytes each; no content is kept. Nothing that a file says can make this panic.

use std::collections::{BTreeMap, HashMap};

const HEADER: usize = 16;
const ELEMENT: usize = 16;
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// A bucket element's value: its root page and a counter.
const BUCKET: usize = 16;
/// Main revision, an underscore, sub-revision.
const REVISION: usize = 17;
/// Names of buckets and small values that are looked at. A longer want is not made.
const LARGEST_WANT: usize = 64 << 10;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const ELEMENT_IS_BUCKET: u32 = 0x01;

/// What a database holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Elements of all buckets, as `etcdutl snapshot status` counts them.
    pub total_keys: u64,
    /// The newest revision in the bucket of keys; zero for an empty one.
    pub newest_key_revision: i64,
    /// The revision up to which history was, or is being, compacted; zero for never.
    pub compacted: i64,
    /// The version that the cluster had agreed on, as `3.5.0`; empty where none is written down.
    pub cluster_version: String,
    /// Bytes of the database.
    pub bytes: u64,
}

impl Opened {
    /// The revision that a member has who starts from this.
    pub fn revision(&self) -> i64 {
        // An empty etcd is at revision 1.
        self.newest_key_revision.max(self.compacted).max(1)
    }
}

/// Why a database is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoltError {
    /// It does not begin like one.
    #[error("this is not a database of etcd: {0}")]
    NotOne(&'static str),
    /// It is shorter or longer than it says.
    #[error("the database has {found} bytes where it says {said}")]
    Length {
        /// What its meta page says.
        said: u64,
        /// What came.
        found: u64,
    },
    /// A page is not what its parent takes it for.
    #[error("page {page} of the database is harmed: {what}")]
    Page {
        /// The page's number.
        page: u64,
        /// What is wrong.
        what: &'static str,
    },
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut raw = [0; 2];
    raw.copy_from_slice(&bytes[at..at + 2]);
    u16::from_le_bytes(raw)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// The newest meta page's words.
#[derive(Clone, Copy)]
struct Meta {
    page_size: usize,
    root: u64,
    pages: u64,
    transaction: u64,
}

fn meta(page: &[u8]) -> Result<Meta, &'static str> {
    const LENGTH: usize = 64;
    let body = page.get(HEADER..HEADER + LENGTH).ok_or("it is too short")?;
    if u32_at(body, 0) != MAGIC {
        return Err("its first page is no meta page");
    }
    if u32_at(body, 4) != VERSION {
        return Err("its format has another version");
    }
    let sum = body[..LENGTH - 8].iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    if sum != u64_at(body, LENGTH - 8) {
        return Err("the checksum of its first page is wrong");
    }
    let page_size = u32_at(body, 8) as usize;
    if !page_size.is_power_of_two() || !(1024..=1 << 20).contains(&page_size) {
        return Err("its page size is impossible");
    }
    Ok(Meta {
        page_size,
        root: u64_at(body, 16),
        pages: u64_at(body, 40),
        transaction: u64_at(body, 48),
    })
}

/// What is remembered of a page that has passed.
#[derive(Clone, Copy, Default)]
struct Note {
    kind: Kind,
    count: u16,
    overflow: u32,
    /// A leaf: the revision of its last key, where it has the form of one. A branch: where its children begin.
    number: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Other,
    Branch,
    Leaf,
    /// It would be one of these, but its elements lie outside of it.
    Harmed,
}

/// What lies further on in the file and is still of interest.
struct Want {
    length: usize,
    got: Vec<u8>,
    purpose: Purpose,
}

#[derive(Clone, Copy)]
enum Purpose {
    Bucket { page: u64, key: usize },
    LastKey { page: u64 },
    Compaction { page: u64, key: usize },
    Version { page: u64, key: usize },
}

/// A bucket, as an element of the root bucket tells.
struct Bucket {
    name: Vec<u8>,
    root: u64,
    /// Small buckets lie in the element itself.
    inline: Option<Inline>,
}

#[derive(Default)]
struct Inline {
    count: u64,
    last: u64,
    compacted: i64,
    version: String,
}

/// Takes a database piece by piece.
#[derive(Default)]
pub struct Checker {
    meta: Option<Meta>,
    wrong: Option<BoltError>,
    /// Less than a page, waiting for the rest of it.
    part: Vec<u8>,
    /// Pages that have passed.
    passed: u64,
    notes: Vec<Note>,
    children: Vec<u32>,
    buckets: HashMap<u64, Vec<Bucket>>,
    compactions: HashMap<u64, i64>,
    versions: HashMap<u64, String>,
    wants: BTreeMap<u64, Vec<Want>>,
    /// Elements' headers of pages that go on: page, next element, how many.
    open: Vec<(u64, usize, usize)>,
    bytes: u64,
}

impl Checker {
    /// Takes the next bytes.
    pub fn push(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if self.wrong.is_some() {
            return;
        }
        let size = match self.meta {
            Some(meta) => meta.page_size,
            None => {
                // The first page says how large pages are.
                const ENOUGH: usize = 1024;
                let fits = piece.len().min(ENOUGH - self.part.len());
                self.part.extend_from_slice(&piece[..fits]);
                piece = &piece[fits..];
                if self.part.len() < ENOUGH {
                    return;
                }
                match meta(&self.part) {
                    Ok(meta) => self.meta = Some(meta),
                    Err(what) => {
                        self.wrong = Some(BoltError::NotOne(what));
                        return;
                    }
                }
                self.meta.map_or(ENOUGH, |meta| meta.page_size)
            }
        };
        while self.part.len() + piece.len() >= size {
            if self.part.is_empty() {
                let (page, rest) = piece.split_at(size);
                self.page(page);
                piece = rest;
            } else {
                let mut page = std::mem::take(&mut self.part);
                let (fits, rest) = piece.split_at(size - page.len());
                page.extend_from_slice(fits);
                self.page(&page);
                page.clear();
                self.part = page;
                piece = rest;
            }
        }
        self.part.extend_from_slice(piece);
    }

    fn page(&mut self, page: &[u8]) {
        let number = self.passed;
        self.passed += 1;
        if number == 1
            && let (Some(first), Ok(second)) = (self.meta, meta(page))
            && second.page_size == first.page_size
            && second.transaction > first.transaction
        {
            self.meta = Some(second);
        }
        let offset = number * page.len() as u64;
        self.feed(offset, page);
        self.go_on(offset, page);
        self.note(number, page);
        // What the page's own elements want may lie in the page itself.
        self.feed(offset, page);
    }

    /// Notes a page by its header. Free pages and the insides of large ones are noted too, for what they look like: the
    /// walk never comes to them.
    fn note(&mut self, number: u64, page: &[u8]) {
        let (flags, count, overflow) = (u16_at(page, 8), u16_at(page, 10), u32_at(page, 12));
        let mut note = Note {
            kind: match flags {
                _ if u64_at(page, 0) != number => Kind::Other,
                BRANCH => Kind::Branch,
                LEAF => Kind::Leaf,
                _ => Kind::Other,
            },
            count,
            overflow,
            number: 0,
        };
        let fit = (page.len() - HEADER) / ELEMENT;
        let elements = usize::from(count);
        match note.kind {
            // Branches hold short keys and are split before they outgrow a page.
            Kind::Branch if elements <= fit => {
                note.number = self.children.len() as u64;
                let list = page[HEADER..HEADER + elements * ELEMENT].chunks_exact(ELEMENT);
                let children = list.map(|element| u32::try_from(u64_at(element, 8)).unwrap_or(u32::MAX));
                self.children.extend(children);
            }
            Kind::Leaf if (HEADER + elements * ELEMENT) as u64 <= page.len() as u64 * (u64::from(overflow) + 1) => {}
            Kind::Branch | Kind::Leaf => note.kind = Kind::Harmed,
            Kind::Other | Kind::Harmed => {}
        }
        self.notes.push(note);
        if note.kind == Kind::Leaf {
            for index in 0..elements.min(fit) {
                let at = HEADER + index * ELEMENT;
                self.element(number, at, &page[at..at + ELEMENT]);
            }
            if elements > fit {
                self.open.push((number, fit, elements));
            }
        }
    }

    /// Goes on with the elements of large pages, whose list is longer than one page.
    fn go_on(&mut self, offset: u64, page: &[u8]) {
        for (number, next, count) in std::mem::take(&mut self.open) {
            let mut index = next;
            while index < count {
                let at = HEADER + index * ELEMENT;
                let absolute = number * page.len() as u64 + at as u64;
                let inside = (absolute - offset) as usize;
                if inside + ELEMENT > page.len() {
                    break;
                }
                let element = page[inside..inside + ELEMENT].to_vec();
                self.element(number, at, &element);
                index += 1;
            }
            if index < count {
                self.open.push((number, index, count));
            }
        }
    }

    /// One element of a leaf, `at` bytes into its page.
    fn element(&mut self, number: u64, at: usize, element: &[u8]) {
        let Some(meta) = self.meta else { return };
        let Some(note) = self.notes.get(number as usize).copied() else {
            return;
        };
        let (flags, position) = (u32_at(element, 0), u32_at(element, 4) as usize);
        let (key, value) = (u32_at(element, 8) as usize, u32_at(element, 12) as usize);
        let size = meta.page_size as u64 * (u64::from(note.overflow) + 1);
        let begin = at as u64 + position as u64;
        if begin + key as u64 + value as u64 > size {
            if let Some(note) = self.notes.get_mut(number as usize) {
                note.kind = Kind::Harmed;
            }
            return;
        }
        let last = at == HEADER + (usize::from(note.count) - 1) * ELEMENT;
        let start = number * meta.page_size as u64 + begin;
        if flags & ELEMENT_IS_BUCKET != 0 && value >= BUCKET {
            self.want(start, key + value, Purpose::Bucket { page: number, key });
        } else if is_compaction(key, value) {
            self.want(start, key + value, Purpose::Compaction { page: number, key });
        } else if key == CLUSTER_VERSION.len() && value <= LONGEST_VERSION {
            self.want(start, key + value, Purpose::Version { page: number, key });
        }
        if last && key >= REVISION {
            self.want(start, REVISION, Purpose::LastKey { page: number });
        }
    }

    fn want(&mut self, start: u64, length: usize, purpose: Purpose) {
        if length <= LARGEST_WANT {
            let want = Want {
                length,
                got: Vec::new(),
                purpose,
            };
            self.wants.entry(start).or_default().push(want);
        }
    }

    /// Gives what is in this page to those who want it.
    fn feed(&mut self, offset: u64, page: &[u8]) {
        let end = offset + page.len() as u64;
        while let Some(entry) = self.wants.first_entry() {
            let start = *entry.key();
            if start >= end {
                return;
            }
            for mut want in entry.remove() {
                // Whatever began before this page was fed up to its start when it was the turn of that page.
                let Some(from) = start.checked_sub(offset).map(|from| from as usize) else {
                    continue;
                };
                let missing = want.length - want.got.len();
                let until = page.len().min(from + missing);
                want.got.extend_from_slice(&page[from..until]);
                if want.got.len() == want.length {
                    self.satisfied(&want);
                } else {
                    self.wants.entry(end).or_default().push(want);
                }
            }
        }
    }

    fn satisfied(&mut self, want: &Want) {
        match want.purpose {
            Purpose::LastKey { page } => {
                if let Some(note) = self.notes.get_mut(page as usize)
                    && note.kind == Kind::Leaf
                {
                    note.number = revision(&want.got).unwrap_or(0);
                }
            }
            Purpose::Compaction { page, key } => {
                if let Some(found) = compaction(&want.got[..key], &want.got[key..]) {
                    let known = self.compactions.entry(page).or_default();
                    *known = found.max(*known);
                }
            }
            Purpose::Version { page, key } => {
                if let Some(version) = version(&want.got[..key], &want.got[key..]) {
                    self.versions.insert(page, version);
                }
            }
            Purpose::Bucket { page, key } => {
                let (name, value) = want.got.split_at(key);
                let root = u64_at(value, 0);
                let bucket = Bucket {
                    name: name.to_vec(),
                    root,
                    inline: (root == 0).then(|| inline(&value[BUCKET..])).flatten(),
                };
                self.buckets.entry(page).or_default().push(bucket);
            }
        }
    }

    /// Walks the tree over the notes.
    pub fn finish(mut self) -> Result<Opened, BoltError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let meta = self.meta.ok_or(BoltError::NotOne("it is too short"))?;
        let said = meta.pages.saturating_mul(meta.page_size as u64);
        if said != self.bytes {
            return Err(BoltError::Length {
                said,
                found: self.bytes,
            });
        }
        let mut seen = vec![false; self.notes.len()];
        let mut opened = Opened {
            bytes: self.bytes,
            ..Opened::default()
        };
        for root_leaf in self.leaves(meta.root, &mut seen)? {
            let buckets = self.buckets.remove(&root_leaf).unwrap_or_default();
            if buckets.len() != usize::from(self.notes[root_leaf as usize].count) {
                return Err(harmed(root_leaf, "it should list buckets and holds something else"));
            }
            for bucket in buckets {
                self.count(&bucket, root_leaf, &mut seen, &mut opened)?;
            }
        }
        Ok(opened)
    }

    fn count(&self, bucket: &Bucket, page: u64, seen: &mut [bool], opened: &mut Opened) -> Result<(), BoltError> {
        let (mut last, mut compacted, mut version) = (0, 0, String::new());
        if bucket.root == 0 {
            let inline = bucket.inline.as_ref();
            let inline = inline.ok_or_else(|| harmed(page, "a small bucket in it cannot be read"))?;
            opened.total_keys += inline.count;
            (last, compacted, version) = (inline.last, inline.compacted, inline.version.clone());
        } else {
            for leaf in self.leaves(bucket.root, seen)? {
                let note = self.notes[leaf as usize];
                opened.total_keys += u64::from(note.count);
                last = note.number.max(last);
                compacted = self.compactions.get(&leaf).copied().unwrap_or(0).max(compacted);
                if let Some(found) = self.versions.get(&leaf) {
                    version.clone_from(found);
                }
            }
        }
        match bucket.name.as_slice() {
            b"key" => opened.newest_key_revision = i64::try_from(last).unwrap_or(0),
            b"meta" => opened.compacted = compacted,
            b"cluster" => opened.cluster_version = version,
            _ => {}
        }
        Ok(())
    }

    /// The leaves below a page, each page of the way reached for the first time.
    fn leaves(&self, root: u64, seen: &mut [bool]) -> Result<Vec<u64>, BoltError> {
        let mut leaves = Vec::new();
        let mut ahead = vec![root];
        while let Some(page) = ahead.pop() {
            let index = usize::try_from(page).unwrap_or(usize::MAX);
            let note = self
                .notes
                .get(index)
                .ok_or_else(|| harmed(page, "it lies beyond the end"))?;
            if std::mem::replace(&mut seen[index], true) {
                return Err(harmed(page, "it is reached twice"));
            }
            match note.kind {
                Kind::Leaf => leaves.push(page),
                Kind::Branch if note.count == 0 => return Err(harmed(page, "it is a branch without children")),
                Kind::Branch => {
                    let first = note.number as usize;
                    let children = self.children.get(first..first + usize::from(note.count));
                    ahead.extend(children.unwrap_or_default().iter().map(|child| u64::from(*child)));
                }
                Kind::Harmed => return Err(harmed(page, "its elements lie outside of it")),
                Kind::Other => return Err(harmed(page, "it is neither branch nor leaf")),
            }
            if page + u64::from(note.overflow) >= self.notes.len() as u64 {
                return Err(harmed(page, "it goes on beyond the end"));
            }
        }
        Ok(leaves)
    }
}

fn harmed(page: u64, what: &'static str) -> BoltError {
    BoltError::Page { page, what }
}

/// The main revision of a key of the bucket `key`: eight bytes, an underscore, eight bytes.
fn revision(key: &[u8]) -> Option<u64> {
    let main: [u8; 8] = key.get(..8)?.try_into().ok()?;
    (key.get(8) == Some(&b'_')).then_some(u64::from_be_bytes(main))
}

const COMPACTIONS: [&[u8]; 2] = [b"scheduledCompactRev", b"finishedCompactRev"];

fn is_compaction(key: usize, value: usize) -> bool {
    value == REVISION && COMPACTIONS.iter().any(|name| name.len() == key)
}

fn compaction(key: &[u8], value: &[u8]) -> Option<i64> {
    let known = COMPACTIONS.contains(&key);
    i64::try_from(revision(value).filter(|_| known)?).ok()
}

/// The key of the bucket `cluster` that every etcd since 3.1 keeps, and room for what it may hold.
const CLUSTER_VERSION: &[u8] = b"clusterVersion";
const LONGEST_VERSION: usize = 32;

fn version(key: &[u8], value: &[u8]) -> Option<String> {
    let fits = key == CLUSTER_VERSION && value.len() <= LONGEST_VERSION;
    let text = std::str::from_utf8(value).ok().filter(|_| fits)?;
    text.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then(|| text.to_owned())
}

/// A bucket that lies in its element: a leaf page of its own, without padding.
fn inline(page: &[u8]) -> Option<Inline> {
    if page.len() < HEADER || u16_at(page, 8) != LEAF {
        return None;
    }
    let count = usize::from(u16_at(page, 10));
    let mut found = Inline {
        count: count as u64,
        ..Inline::default()
    };
    for index in 0..count {
        let at = HEADER + index * ELEMENT;
        let element = page.get(at..at + ELEMENT)?;
        let (position, key, value) = (u32_at(element, 4), u32_at(element, 8), u32_at(element, 12));
        let begin = at + position as usize;
        let (key_end, end) = (begin + key as usize, begin + key as usize + value as usize);
        let (key, value) = (page.get(begin..key_end)?, page.get(key_end..end)?);
        found.last = revision(key).filter(|_| key.len() >= REVISION).unwrap_or(0);
        found.compacted = compaction(key, value).unwrap_or(0).max(found.compacted);
        if let Some(version) = version(key, value) {
            found.version = version;
        }
    }
    Some(found)
}
