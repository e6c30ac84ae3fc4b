//! A glance at a JSON body before Arrow's decoder sees it.
//!
//! Arrow's decoder takes the string `"42"` and the number `5.7` for an integer without a word, and does not mind missing
//! commas. [`Expected`] says what may stand where, and [`scan`] passes once over the bytes and reports what differs. It
//! looks only at declared columns: what stands under other keys is skipped by its brackets and quotes. It does not read
//! values, so whether a number is in range or a date exists is left to the decoder.

use std::ops::Range;

use arrow::datatypes::{DataType, FieldRef, Fields};
use serde_json::Value;

/// What may stand at a place.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    kind: Kind,
    /// The bits of what fits; `null` always does.
    takes: u8,
}

#[derive(Clone, Debug)]
enum Kind {
    Anything,
    Flag,
    /// A number without fraction or exponent.
    Integer,
    /// A number of at most this size, either way.
    Number(f64),
    /// A number, or a string with one: how exact amounts are often sent.
    Decimal,
    Text,
    /// A string, or an integer of the column's unit since 1970.
    Instant,
    List(Box<Expected>),
    Object(Vec<Member>),
    /// An object of any keys.
    Map(Box<Expected>),
}

/// A declared key of an object.
#[derive(Clone, Debug)]
struct Member {
    name: Box<str>,
    opening: Opening,
    expected: Expected,
}

/// A key and its colon as JSON usually writes them, and their first bytes as a number, to be compared in one go.
#[derive(Clone, Debug)]
struct Opening {
    text: Box<[u8]>,
    head: u128,
    mask: u128,
}

impl Opening {
    fn new(name: &str) -> Self {
        let text = format!("{}:", Value::from(name)).into_bytes();
        let (mut head, mut mask) = ([0; 16], [0; 16]);
        for ((head, mask), byte) in head.iter_mut().zip(&mut mask).zip(&text) {
            (*head, *mask) = (*byte, u8::MAX);
        }
        Self { text: text.into(), head: u128::from_le_bytes(head), mask: u128::from_le_bytes(mask) }
    }

    /// What follows it, if `rest` begins with it.
    #[inline(always)]
    fn strip<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        match rest.first_chunk::<16>() {
            Some(first) if u128::from_le_bytes(*first) & self.mask != self.head => None,
            Some(_) if self.text.len() <= 16 => rest.get(self.text.len()..),
            _ => rest.strip_prefix(self.text.as_ref()),
        }
    }
}

/// What stands somewhere: a bit each.
type Found = u8;
const NULL: Found = 1;
const FLAG: Found = 1 << 1;
const INTEGER: Found = 1 << 2;
const FRACTION: Found = 1 << 3;
const TEXT: Found = 1 << 4;
const LIST: Found = 1 << 5;
const OBJECT: Found = 1 << 6;

/// A difference: either the body is not what JSON is, or a value is not what its column wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not JSON, from this byte on.
    Syntax(usize, &'static str),
    /// The value in this range does not fit its column, whose path is given.
    Value(Range<usize>, String),
}

static ANYTHING: Expected = Expected { kind: Kind::Anything, takes: Found::MAX };

impl Expected {
    /// What stands for a value of this type.
    fn of(data_type: &DataType) -> Self {
        let kind = match data_type {
            DataType::Boolean => Kind::Flag,
            other if other.is_integer() => Kind::Integer,
            DataType::Float32 => Kind::Number(f32::MAX.into()),
            other if other.is_floating() => Kind::Number(f64::MAX),
            DataType::Decimal128(..) | DataType::Decimal256(..) => Kind::Decimal,
            DataType::Timestamp(..) => Kind::Instant,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Kind::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Kind::Text,
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => Kind::Text,
            DataType::List(item) | DataType::LargeList(item) => Kind::List(Box::new(Self::of(item.data_type()))),
            DataType::Struct(fields) => return Self::object(fields),
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(entry) if entry.len() == 2 => Kind::Map(Box::new(Self::of(entry[1].data_type()))),
                _ => Kind::Anything,
            },
            _ => Kind::Anything,
        };
        Self::new(kind)
    }

    fn new(kind: Kind) -> Self {
        let takes = match kind {
            Kind::Anything => Found::MAX,
            Kind::Flag => FLAG,
            Kind::Integer => INTEGER,
            Kind::Number(_) => INTEGER | FRACTION,
            Kind::Decimal => INTEGER | FRACTION | TEXT,
            Kind::Text => TEXT,
            Kind::Instant => TEXT | INTEGER,
            Kind::List(_) => LIST,
            Kind::Object(_) | Kind::Map(_) => OBJECT,
        };
        Self { kind, takes: takes | NULL }
    }

    /// An object with these keys.
    pub(super) fn object(fields: &Fields) -> Self {
        let member = |field: &FieldRef| Member {
            name: field.name().as_str().into(),
            opening: Opening::new(field.name()),
            expected: Self::of(field.data_type()),
        };
        Self::new(Kind::Object(fields.iter().map(member).collect()))
    }

    /// Whether the decoder would quietly make another number of this one. Few are long enough to be asked.
    fn bends(&self, number: &[u8]) -> bool {
        let text = || str::from_utf8(number).unwrap_or_default();
        match self.kind {
            // It takes integers that are too long by way of a float. Positive ones then fail.
            Kind::Integer => number.len() > 18 && number[0] == b'-' && text().parse::<i64>().is_err(),
            Kind::Instant => number.len() > 18 && text().parse::<i64>().is_err(),
            Kind::Number(most) if number.len() > 38 || number.iter().any(|byte| matches!(byte, b'e' | b'E')) => {
                text().parse::<f64>().is_ok_and(|value| value.abs() > most)
            }
            _ => false,
        }
    }

    /// In a sentence.
    fn as_str(&self) -> &'static str {
        match self.kind {
            Kind::Anything => "anything",
            Kind::Flag => "true or false",
            Kind::Integer => "an integer",
            Kind::Number(_) => "a number",
            Kind::Decimal => "a number or a string with one",
            Kind::Text => "a string",
            Kind::Instant => "a time as a string, or an integer",
            Kind::List(_) => "a list",
            Kind::Object(_) | Kind::Map(_) => "an object",
        }
    }
}

/// Passes over `body` and answers how many values there were, one after another. Faults of values are collected; one of
/// syntax is the last.
pub(super) fn scan(body: &[u8], expected: &Expected, faults: &mut Vec<Fault>) -> usize {
    let mut scan = Scan { length: body.len(), rest: body, faults };
    let mut count = 0;
    let ended = loop {
        scan.space();
        if scan.rest.is_empty() {
            break Ok(());
        }
        if let Err(syntax) = scan.value(expected, None) {
            break Err(syntax);
        }
        count += 1;
    };
    if let Err(what) = ended {
        let at = scan.at();
        faults.push(Fault::Syntax(at, what));
    }
    count
}

/// A pass over a body. This runs over every byte of every message, so it walks by shortening a slice, which needs no
/// bounds checks.
struct Scan<'a> {
    length: usize,
    /// What is ahead.
    rest: &'a [u8],
    faults: &'a mut Vec<Fault>,
}

/// The keys around a value, innermost first.
#[derive(Clone, Copy)]
struct Path<'p> {
    name: &'p str,
    above: Option<&'p Path<'p>>,
}

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(above) = self.above {
            write!(f, "{above}.")?;
        }
        f.write_str(self.name)
    }
}

type Syntax<T = ()> = Result<T, &'static str>;

const TOO_EARLY: &str = "it ends too early";
const NO_VALUE: &str = "this is not the beginning of a value";

impl Scan<'_> {
    fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    #[inline(always)]
    fn space(&mut self) {
        if let [first, ..] = self.rest
            && *first <= b' '
        {
            self.more_space();
        }
    }

    #[cold]
    fn more_space(&mut self) {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Goes past the next byte that is not space.
    #[inline(always)]
    fn next(&mut self) -> Syntax<u8> {
        self.space();
        let (next, rest) = self.rest.split_first().ok_or(TOO_EARLY)?;
        self.rest = rest;
        Ok(*next)
    }

    #[inline(always)]
    fn value(&mut self, expected: &Expected, path: Option<&Path<'_>>) -> Syntax {
        self.space();
        let before = self.rest;
        let Some((first, rest)) = before.split_first() else { return Err(TOO_EARLY) };
        self.rest = rest;
        let found = match first {
            b'"' => {
                self.string()?;
                TEXT
            }
            b'-' | b'0'..=b'9' => {
                let found = self.number(before)?;
                if expected.bends(&before[..before.len() - self.rest.len()]) {
                    self.fault(before, path, "cannot hold such a number");
                    return Ok(());
                }
                found
            }
            _ => self.other(*first, expected, path)?,
        };
        // A body is never null; a column may be.
        if expected.takes & found == 0 || (found == NULL && path.is_none()) {
            self.fault(before, path, &format!("wants {}", expected.as_str()));
        }
        Ok(())
    }

    /// Past a value that is neither a string nor a number and whose first byte is behind.
    fn other(&mut self, first: u8, expected: &Expected, path: Option<&Path<'_>>) -> Syntax<Found> {
        match (first, &expected.kind) {
            (b'{', Kind::Object(members)) => self.object(members, None, path),
            (b'{', Kind::Map(values)) => self.object(&[], Some(values), path),
            (b'[', Kind::List(item)) => self.list(item, path),
            (b'{', _) => self.skip(OBJECT),
            (b'[', _) => self.skip(LIST),
            (b'n', _) => self.literal(b"ull", NULL),
            (b't', _) => self.literal(b"rue", FLAG),
            (b'f', _) => self.literal(b"alse", FLAG),
            _ => Err(NO_VALUE),
        }
    }

    /// Notes that the value from the beginning of `before` to here does not fit.
    #[cold]
    fn fault(&mut self, before: &[u8], path: Option<&Path<'_>>, what: &str) {
        let name = path.map_or("the body".to_owned(), |path| format!("column '{path}'"));
        self.faults.push(Fault::Value(self.length - before.len()..self.at(), format!("{name} {what}")));
    }

    /// An object: of these members, or with `every` value alike.
    fn object(&mut self, members: &[Member], every: Option<&Expected>, path: Option<&Path<'_>>) -> Syntax<Found> {
        self.space();
        if let [b'}', rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(OBJECT);
        }
        let mut next = 0;
        loop {
            if let Some((at, Member { name, expected, .. })) = self.key(members, next)? {
                self.value(expected, Some(&Path { name, above: path }))?;
                next = at + 1;
            } else {
                self.value(every.unwrap_or(&ANYTHING), path)?;
            }
            match self.next()? {
                b',' => {}
                b'}' => return Ok(OBJECT),
                _ => return Err("a comma or a closing brace should be here"),
            }
        }
    }

    /// Past a key and its colon; answers which member it is. Messages of one kind have their keys in one order, so `next`, the member
    /// after the last one, is a good guess.
    #[inline(always)]
    fn key<'m>(&mut self, members: &'m [Member], next: usize) -> Syntax<Option<(usize, &'m Member)>> {
        self.space();
        if let Some(member) = members.get(next)
            && let Some(rest) = member.opening.strip(self.rest)
        {
            self.rest = rest;
            return Ok(Some((next, member)));
        }
        self.other_key(members)
    }

    fn other_key<'m>(&mut self, members: &'m [Member]) -> Syntax<Option<(usize, &'m Member)>> {
        let before = self.rest;
        if self.next()? != b'"' {
            return Err("a key in double quotes should be here");
        }
        self.string()?;
        let quoted = &before[..before.len() - self.rest.len()];
        if self.next()? != b':' {
            return Err("a colon should be here");
        }
        let find = |key: &[u8]| members.iter().enumerate().find(|(_, member)| member.name.as_bytes() == key);
        if !quoted.contains(&b'\\') {
            return Ok(find(&quoted[1..quoted.len() - 1]));
        }
        let unescaped = serde_json::from_slice::<String>(quoted);
        Ok(unescaped.ok().and_then(|key| find(key.as_bytes())))
    }

    fn list(&mut self, item: &Expected, path: Option<&Path<'_>>) -> Syntax<Found> {
        self.space();
        if let [b']', rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(LIST);
        }
        loop {
            self.value(item, path)?;
            match self.next()? {
                b',' => {}
                b']' => return Ok(LIST),
                _ => return Err("a comma or a closing bracket should be here"),
            }
        }
    }

    /// Past an object or a list that nobody reads, however deep, and whose opening is behind.
    fn skip(&mut self, found: Found) -> Syntax<Found> {
        let mut open = 1_usize;
        while let [byte, rest @ ..] = self.rest {
            self.rest = rest;
            match byte {
                b'"' => self.string()?,
                b'{' | b'[' => open += 1,
                b'}' | b']' => {
                    open -= 1;
                    if open == 0 {
                        return Ok(found);
                    }
                }
                _ => {}
            }
        }
        Err(TOO_EARLY)
    }

    /// Past the end of a string whose opening quote is behind.
    #[inline]
    fn string(&mut self) -> Syntax {
        loop {
            match quote_or_escape(self.rest) {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    return Ok(());
                }
                [b'\\', _, rest @ ..] => self.rest = rest,
                _ => {
                    self.rest = &[];
                    return Err("a quote is not closed");
                }
            }
        }
    }

    fn literal(&mut self, literal: &[u8], found: Found) -> Syntax<Found> {
        self.rest = self.rest.strip_prefix(literal).ok_or(NO_VALUE)?;
        Ok(found)
    }

    /// Past the number at the beginning of `before`, whose first byte is behind.
    #[inline]
    fn number(&mut self, before: &[u8]) -> Syntax<Found> {
        let mut found = INTEGER;
        while let [byte, rest @ ..] = self.rest {
            match byte {
                b'0'..=b'9' | b'-' => {}
                b'.' | b'e' | b'E' | b'+' => found = FRACTION,
                _ => break,
            }
            self.rest = rest;
        }
        match before {
            [b'0', b'0'..=b'9', ..] | [b'-', b'0', b'0'..=b'9', ..] => Err("a number does not begin with a zero"),
            _ => Ok(found),
        }
    }
}

/// What is left from the first quote or backslash on. Eight bytes at a time: strings are short, and many.
#[inline]
fn quote_or_escape(mut rest: &[u8]) -> &[u8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The high bit of each byte that is zero, and of none before the first of them.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ (ONES * 0x22)) | zeros(word ^ (ONES * 0x5C));
        if found != 0 {
            return rest.get(found.trailing_zeros() as usize / 8..).unwrap_or_default();
        }
        rest = after;
    }
    while let [byte, after @ ..] = rest {
        if matches!(byte, b'"' | b'\\') {
            break;
        }
        rest = after;
    }
    rest
}

#[cfg(test)]
mod tests;
