//! The wire format of protobuf, as far as a message's own fields: numbers and lengths, nothing of what is in them.

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32(&'a [u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
    /// In none of our messages, but who reads them passes over it.
    Group,
}

/// Groups in groups, as far as readers follow.
const MAX_GROUP_DEPTH: usize = 100;

/// One field, with its bytes as they stand in the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub number: u32,
    pub value: Value<'a>,
    pub wire: &'a [u8],
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields of a message, one after another, until the end or the first that is none.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

pub(crate) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field().ok_or(Malformed);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let begin = self.rest;
        // In a group that is passed over nobody minds a number of 0.
        let (number, kind) = self.key().filter(|(number, _)| *number > 0)?;
        let value = match kind {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            3 => {
                self.group(number)?;
                Value::Group
            }
            5 => Value::Fixed32(self.take(4)?.first_chunk()?),
            _ => return None,
        };
        let wire = &begin[..begin.len() - self.rest.len()];
        Some(Field {
            number,
            value,
            wire,
        })
    }

    fn key(&mut self) -> Option<(u32, u32)> {
        let key = u32::try_from(self.varint()?).ok()?;
        Some((key >> 3, key & 7))
    }

    /// Passes over a group that has begun.
    fn group(&mut self, number: u32) -> Option<()> {
        let mut begun = vec![number];
        while let Some(innermost) = begun.last() {
            let (number, kind) = self.key()?;
            match kind {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    self.take(length)?;
                }
                3 if begun.len() < MAX_GROUP_DEPTH => begun.push(number),
                4 if number == *innermost => drop(begun.pop()),
                5 => drop(self.take(4)?),
                _ => return None,
            }
        }
        Some(())
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (place, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return Some(value);
            }
        }
        None
    }
}

/// Whether these are numbers, one after another.
pub(crate) fn check_varints(packed: &[u8]) -> Result<(), Malformed> {
    let mut numbers = fields(packed);
    while !numbers.rest.is_empty() {
        numbers.varint().ok_or(Malformed)?;
    }
    Ok(())
}

/// Appends a number as a varint.
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "seven bits and the flag")]
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
    out.push(value as u8);
}

/// Appends a field's key and length; its bytes are to follow.
pub(crate) fn put_length(number: u32, length: usize, out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | 2, out);
    put_varint(length as u64, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_their_bytes() {
        let message = [8, 0x96, 1, 0x12, 2, 7, 8, 0x1d, 1, 0, 0, 0];
        let read: Vec<_> = fields(&message).map(Result::unwrap).collect();
        let values: Vec<_> = read
            .iter()
            .map(|field| (field.number, field.value))
            .collect();
        assert_eq!(
            values,
            [
                (1, Value::Varint(150)),
                (2, Value::Bytes(&[7, 8])),
                (3, Value::Fixed32(&[1, 0, 0, 0]))
            ]
        );
        let wire: Vec<u8> = read.iter().flat_map(|field| field.wire).copied().collect();
        assert_eq!(wire, message);
    }

    #[test]
    fn what_is_cut_off_or_no_field_is_malformed() {
        for bad in [
            &[0x0a, 0xff, 0xff][..], // a length that does not end
            &[0x0a, 5, 1],           // more promised than there is
            &[0x0d, 1, 2, 3],
            &[0x09, 1],
            &[0x08],
            &[0x0b],       // a group without end
            &[0x0b, 0x14], // or with another's
            &[0x0c],       // an end of none
            &[0x07],       // no wire type
            &[0x00, 0x00], // field 0
            &[0xff; 11],
        ] {
            assert!(fields(bad).any(|field| field.is_err()), "{bad:?}");
        }
    }

    #[test]
    fn what_is_put_is_read() {
        for length in [0, 1, 127, 128, 300, 1 << 20] {
            let mut out = Vec::new();
            put_length(5, length, &mut out);
            out.resize(out.len() + length, 9);
            let field = fields(&out).next().unwrap().unwrap();
            assert_eq!(field.number, 5);
            assert!(matches!(field.value, Value::Bytes(bytes) if bytes.len() == length));
        }
    }
}
