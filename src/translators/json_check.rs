//! A glance at a JSON body before Arrow's decoder sees it.
//!
//! Arrow's decoder takes the string `"42"` and the number `5.7` for an integer without a word, and does not mind missing
//! commas. [`Expected`] says what may stand where, and [`scan`] passes once over the bytes and reports what differs. It
//! looks only at declared columns: what stands under other keys is skipped by its brackets and quotes. It does not read
//! values, so whether a number is in range or a date exists is left to the decoder.

use std::ops::Range;

use arrow::datatypes::DataType;
use memchr::memchr2;

/// What may stand at a place. `null` may stand anywhere.
#[derive(Clone, Debug)]
pub(super) enum Expected {
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
    Object(Vec<(Box<str>, Expected)>),
    /// An object of any keys.
    Map(Box<Expected>),
}

/// What stands somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Null,
    Flag,
    Integer,
    Fraction,
    Text,
    List,
    Object,
}

/// A difference: either the body is not what JSON is, or a value is not what its column wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not JSON, from this byte on.
    Syntax(usize, &'static str),
    /// The value in this range does not fit its column, whose path is given.
    Value(Range<usize>, String),
}

impl Expected {
    /// What stands for a value of this type.
    pub(super) fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Boolean => Self::Flag,
            other if other.is_integer() => Self::Integer,
            DataType::Float32 => Self::Number(f32::MAX.into()),
            other if other.is_floating() => Self::Number(f64::MAX),
            DataType::Decimal128(..) | DataType::Decimal256(..) => Self::Decimal,
            DataType::Timestamp(..) => Self::Instant,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Self::Text,
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) => Self::Text,
            DataType::List(item) | DataType::LargeList(item) => Self::List(Box::new(Self::of(item.data_type()))),
            DataType::Struct(fields) => Self::Object(
                fields.iter().map(|field| (field.name().as_str().into(), Self::of(field.data_type()))).collect(),
            ),
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(entry) if entry.len() == 2 => Self::Map(Box::new(Self::of(entry[1].data_type()))),
                _ => Self::Anything,
            },
            _ => Self::Anything,
        }
    }

    fn takes(&self, found: Found) -> bool {
        match self {
            Self::Anything => true,
            Self::Flag => found == Found::Flag,
            Self::Integer => found == Found::Integer,
            Self::Number(_) => matches!(found, Found::Integer | Found::Fraction),
            Self::Decimal => matches!(found, Found::Integer | Found::Fraction | Found::Text),
            Self::Text => found == Found::Text,
            Self::Instant => matches!(found, Found::Text | Found::Integer),
            Self::List(_) => found == Found::List,
            Self::Object(_) | Self::Map(_) => found == Found::Object,
        }
    }

    /// Whether the decoder would quietly make another number of this one. Few are long enough to be asked.
    fn bends(&self, number: &[u8]) -> bool {
        let text = || str::from_utf8(number).unwrap_or_default();
        match self {
            // It takes integers that are too long by way of a float. Positive ones then fail.
            Self::Integer => number.len() > 18 && number[0] == b'-' && text().parse::<i64>().is_err(),
            Self::Instant => number.len() > 18 && text().parse::<i64>().is_err(),
            Self::Number(most) if number.len() > 38 || number.iter().any(|byte| matches!(byte, b'e' | b'E')) => {
                text().parse::<f64>().is_ok_and(|value| value.abs() > *most)
            }
            _ => false,
        }
    }

    /// In a sentence.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Anything => "anything",
            Self::Flag => "true or false",
            Self::Integer => "an integer",
            Self::Number(_) => "a number",
            Self::Decimal => "a number or a string with one",
            Self::Text => "a string",
            Self::Instant => "a time as a string, or an integer",
            Self::List(_) => "a list",
            Self::Object(_) | Self::Map(_) => "an object",
        }
    }
}

/// Passes over `body` and answers how many values there were, one after another. Faults of values are collected; one of
/// syntax is the last.
pub(super) fn scan(body: &[u8], expected: &Expected, faults: &mut Vec<Fault>) -> usize {
    let mut scan = Scan { body, at: 0, faults, path: Vec::new() };
    let mut count = 0;
    let ended = loop {
        scan.space();
        if scan.at == body.len() {
            break Ok(());
        }
        if let Err(syntax) = scan.value(expected) {
            break Err(syntax);
        }
        count += 1;
    };
    if let Err(what) = ended {
        let at = scan.at;
        faults.push(Fault::Syntax(at, what));
    }
    count
}

struct Scan<'a, 'p> {
    body: &'a [u8],
    at: usize,
    faults: &'a mut Vec<Fault>,
    /// The names of the columns around, for a fault.
    path: Vec<&'p str>,
}

type Syntax<T = ()> = Result<T, &'static str>;

impl<'p> Scan<'_, 'p> {
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.body.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not space.
    fn next(&mut self) -> Syntax<u8> {
        self.space();
        self.body.get(self.at).copied().ok_or("it ends too early")
    }

    fn value(&mut self, expected: &'p Expected) -> Syntax {
        let first = self.next()?;
        let start = self.at;
        let found = match (first, expected) {
            (b'{', Expected::Object(fields)) => {
                self.object(|scan, key, next| match position(fields, key, next) {
                    Some(at) => {
                        let (name, expected) = &fields[at];
                        scan.path.push(name);
                        scan.value(expected)?;
                        scan.path.pop();
                        Ok(at + 1)
                    }
                    None => scan.value(&Expected::Anything).map(|()| next),
                })?;
                Found::Object
            }
            (b'{', Expected::Map(values)) => {
                self.object(|scan, _, _| scan.value(values).map(|()| 0))?;
                Found::Object
            }
            (b'[', Expected::List(item)) => {
                self.list(item)?;
                Found::List
            }
            (b'{', _) => self.skip(Found::Object)?,
            (b'[', _) => self.skip(Found::List)?,
            (b'"', _) => {
                self.at += 1;
                self.string()?;
                Found::Text
            }
            (b'n', _) => self.literal(b"null", Found::Null)?,
            (b't', _) => self.literal(b"true", Found::Flag)?,
            (b'f', _) => self.literal(b"false", Found::Flag)?,
            (b'-' | b'0'..=b'9', _) => {
                let found = self.number()?;
                if expected.bends(&self.body[start..self.at]) {
                    self.fault(start, "cannot hold such a number");
                    return Ok(());
                }
                found
            }
            _ => return Err("this is not the beginning of a value"),
        };
        // A body is never null; a column may be.
        let null = found == Found::Null && !self.path.is_empty();
        if !null && !expected.takes(found) {
            self.fault(start, &format!("wants {}", expected.as_str()));
        }
        Ok(())
    }

    /// Notes that the value from `start` to here does not fit.
    fn fault(&mut self, start: usize, what: &str) {
        let name = match self.path.as_slice() {
            [] => "the body".to_owned(),
            path => format!("column '{}'", path.join(".")),
        };
        self.faults.push(Fault::Value(start..self.at, format!("{name} {what}")));
    }

    /// The members of an object. `member` is given the key and what it answered last, 0 at first.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &[u8], usize) -> Syntax<usize>) -> Syntax {
        let mut next = 0;
        self.at += 1;
        if self.next()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.next()? != b'"' {
                return Err("a key in double quotes should be here");
            }
            self.at += 1;
            let start = self.at;
            self.string()?;
            let body = self.body;
            let key = &body[start..self.at - 1];
            if self.next()? != b':' {
                return Err("a colon should be here");
            }
            self.at += 1;
            next = member(self, key, next)?;
            match self.next()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err("a comma or a closing brace should be here"),
            }
        }
    }

    fn list(&mut self, item: &'p Expected) -> Syntax {
        self.at += 1;
        if self.next()? == b']' {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(item)?;
            match self.next()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err("a comma or a closing bracket should be here"),
            }
        }
    }

    /// Past an object or a list that nobody reads, however deep.
    fn skip(&mut self, found: Found) -> Syntax<Found> {
        let mut open = 0_usize;
        while let Some(byte) = self.body.get(self.at) {
            self.at += 1;
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
        Err("it ends too early")
    }

    /// Past the end of a string whose opening quote is behind.
    fn string(&mut self) -> Syntax {
        loop {
            let rest = &self.body[self.at..];
            match memchr2(b'"', b'\\', rest) {
                Some(end) if rest[end] == b'"' => {
                    self.at += end + 1;
                    return Ok(());
                }
                Some(escape) if escape + 2 <= rest.len() => self.at += escape + 2,
                _ => {
                    self.at = self.body.len();
                    return Err("a quote is not closed");
                }
            }
        }
    }

    fn literal(&mut self, literal: &[u8], found: Found) -> Syntax<Found> {
        if !self.body[self.at..].starts_with(literal) {
            return Err("this is not the beginning of a value");
        }
        self.at += literal.len();
        Ok(found)
    }

    fn number(&mut self) -> Syntax<Found> {
        let start = self.at;
        let mut found = Found::Integer;
        while let Some(byte) = self.body.get(self.at) {
            match byte {
                b'0'..=b'9' | b'-' => {}
                b'.' | b'e' | b'E' | b'+' => found = Found::Fraction,
                _ => break,
            }
            self.at += 1;
        }
        match self.body[start..self.at] {
            [b'0', b'0'..=b'9', ..] | [b'-', b'0', b'0'..=b'9', ..] => Err("a number does not begin with a zero"),
            _ => Ok(found),
        }
    }
}

/// Which field a key is. Messages of one kind have their keys in one order, so the field after the last one is a good
/// guess.
fn position(fields: &[(Box<str>, Expected)], key: &[u8], next: usize) -> Option<usize> {
    let unescaped: String;
    let key = if key.contains(&b'\\') {
        let quoted = [b"\"", key, b"\""].concat();
        unescaped = serde_json::from_slice(&quoted).ok()?;
        unescaped.as_bytes()
    } else {
        key
    };
    let is_key = |at: &usize| fields.get(*at).is_some_and(|(name, _)| name.as_bytes() == key);
    Some(next).filter(is_key).or_else(|| (0..fields.len()).find(is_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected::Object(vec![
            ("n".into(), Expected::Integer),
            ("x".into(), Expected::Number(f32::MAX.into())),
            ("at".into(), Expected::Instant),
            ("t".into(), Expected::Text),
            ("tags".into(), Expected::List(Box::new(Expected::Text))),
            ("in".into(), Expected::Object(vec![("b".into(), Expected::Flag)])),
            ("m".into(), Expected::Map(Box::new(Expected::Integer))),
        ])
    }

    fn faults(body: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        scan(body.as_bytes(), &expected(), &mut faults);
        faults
    }

    #[test]
    fn what_fits_has_no_fault() {
        for body in [
            "{}",
            " { \"n\" : -42 , \"x\" : 1 , \"t\" : \"a\\\"b\\\\\" } ",
            r#"{"t":"a","n":1,"x":1.5e3,"tags":["a",null],"in":{"b":true,"other":[1,{"]":"}"}]},"m":{"k":1}}"#,
            r#"{"n":-9223372036854775808,"x":1e38,"at":9223372036854775807}"#,
            r#"{"n":null,"unknown":{"n":"42"},"t":null}"#,
        ] {
            assert_eq!(faults(body), [], "{body}");
        }
    }

    #[test]
    fn values_of_another_kind_are_found_by_column() {
        for (body, text, what) in [
            (r#"{"n":"42"}"#, "\"42\"", "column 'n' wants an integer"),
            (r#"{"n":5.7}"#, "5.7", "column 'n' wants an integer"),
            (r#"{"n":1e3}"#, "1e3", "column 'n' wants an integer"),
            (r#"{"\u006e":"42"}"#, "\"42\"", "column 'n' wants an integer"),
            (r#"{"n":-9223372036854775809}"#, "-9223372036854775809", "column 'n' cannot hold such a number"),
            (r#"{"at":9223372036854775808}"#, "9223372036854775808", "column 'at' cannot hold such a number"),
            (r#"{"x":1e39}"#, "1e39", "column 'x' cannot hold such a number"),
            (r#"{"x":"1"}"#, "\"1\"", "column 'x' wants a number"),
            (r#"{"t":[1,"]"]}"#, r#"[1,"]"]"#, "column 't' wants a string"),
            (r#"{"tags":"a"}"#, "\"a\"", "column 'tags' wants a list"),
            (r#"{"tags":["a",1]}"#, "1", "column 'tags' wants a string"),
            (r#"{"in":{"b":0}}"#, "0", "column 'in.b' wants true or false"),
            (r#"{"m":{"k":"1"}}"#, "\"1\"", "column 'm' wants an integer"),
            ("[1]", "[1]", "the body wants an object"),
            ("null", "null", "the body wants an object"),
        ] {
            let faults = faults(body);
            let [Fault::Value(range, said)] = faults.as_slice() else { panic!("{body}: {faults:?}") };
            assert_eq!((&body[range.clone()], said.as_str()), (text, what), "{body}");
        }
        assert_eq!(faults(r#"{"n":"42","x":"1"}"#).len(), 2);
    }

    #[test]
    fn what_is_not_json_is_a_fault_of_syntax() {
        for body in [
            "{",
            "{\"",
            "{\"n",
            "{\"n\"",
            "{\"n\":",
            "{\"n\":1",
            "{\"n\":1,",
            "{\"n\":1,}",
            "{n:1}",
            "{\"n\" 1}",
            "}",
            "]",
            "{\"n\":1 \"x\":2}",
            "{\"n\":1,,\"x\":2}",
            "{\"tags\":[\"a\" \"b\"]}",
            "{\"tags\":[",
            "{\"u\":[{]",
            "nul",
            "x",
            "{\"t\":\"\\",
            "{\"t\":\"\\\"",
            "{\"t\":tru}",
            "{\"n\":01}",
        ] {
            assert!(matches!(faults(body).last(), Some(Fault::Syntax(..))), "{body}");
        }
    }

    #[test]
    fn values_are_counted() {
        for (body, count) in [("", 0), (" ", 0), ("{}", 1), ("{}{}", 2), ("{}\n{\"n\":1}\n", 2)] {
            assert_eq!(scan(body.as_bytes(), &expected(), &mut Vec::new()), count, "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_scanned_to_an_end(body in r#"[{}\[\]":,ntx\\0-9.e "]{0,40}"#) {
            scan(body.as_bytes(), &expected(), &mut Vec::new());
        }
    }
}
