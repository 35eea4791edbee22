//! `Stored` of `proto/prefixlb/v1/delta.proto`, whose hashes are most of what a router reads.
//!
//! As prost would derive it, but for its hashes: prost looks at each one, these are copied.

use bytes::{Buf, BufMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_varint, fixed64, skip_field};

const PARENT: u32 = 1;
const HASHES: u32 = 2;

/// See delta.proto.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// Hash of the block before the run, 0 at the start of a prompt.
    pub parent: u64,
    /// The run, in chain order.
    pub hashes: Vec<u64>,
}

impl prost::Message for Stored {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if self.parent != 0 {
            fixed64::encode(PARENT, &self.parent, buf);
        }
        fixed64::encode_packed(HASHES, &self.hashes, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            PARENT => fixed64::merge(wire_type, &mut self.parent, buf, context),
            HASHES if wire_type == WireType::LengthDelimited && copy(&mut self.hashes, buf) => {
                Ok(())
            }
            HASHES => fixed64::merge_repeated(wire_type, &mut self.hashes, buf, context),
            _ => skip_field(wire_type, tag, buf, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let parent = match self.parent {
            0 => 0,
            ref parent => fixed64::encoded_len(PARENT, parent),
        };
        parent + fixed64::encoded_len_packed(HASHES, &self.hashes)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Takes packed hashes, if they lie in one piece and are whole; otherwise nothing is taken.
fn copy(hashes: &mut Vec<u64>, buf: &mut impl Buf) -> bool {
    let mut ahead = buf.chunk();
    let before = ahead.len();
    let Ok(len) = decode_varint(&mut ahead) else {
        return false;
    };
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let Some((packed, after)) = ahead.split_at_checked(len) else {
        return false;
    };
    let (words, rest) = packed.as_chunks::<8>();
    if !rest.is_empty() {
        return false;
    }
    hashes.extend(words.iter().map(|&word| u64::from_le_bytes(word)));
    let taken = before - after.len();
    buf.advance(taken);
    true
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::Stored;

    /// What prost derives.
    #[derive(Clone, PartialEq, Message)]
    struct Derived {
        #[prost(fixed64, tag = "1")]
        parent: u64,
        #[prost(fixed64, repeated, tag = "2")]
        hashes: Vec<u64>,
    }

    #[test]
    fn bytes_mean_what_they_mean_to_prost() {
        let packed = |hashes: &[u64]| Derived {
            parent: 7,
            hashes: hashes.to_vec(),
        };
        let one = packed(&[1, 2, 1 << 63]).encode_to_vec();
        let twice = [one.clone(), packed(&[4]).encode_to_vec()].concat();
        let unpacked = [
            [0x11, 5, 0, 0, 0, 0, 0, 0, 0],
            [0x11, 6, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        let unknown = [vec![0x18, 3], one.clone()].concat();
        let empty = packed(&[]).encode_to_vec();
        for bytes in [one, twice, unpacked, unknown, empty, vec![]] {
            let (own, derived) = (Stored::decode(&*bytes), Derived::decode(&*bytes));
            let (own, derived) = (own.unwrap(), derived.unwrap());
            assert_eq!((own.parent, &own.hashes), (derived.parent, &derived.hashes));
            assert_eq!(own.encode_to_vec(), derived.encode_to_vec());
            assert_eq!(own.encoded_len(), derived.encoded_len());
            for cut in 0..bytes.len() {
                let own = Stored::decode(&bytes[..cut]).map(|own| own.hashes);
                let derived = Derived::decode(&bytes[..cut]).map(|derived| derived.hashes);
                assert_eq!(own.ok(), derived.ok());
            }
        }
        for ragged in [
            [0x12, 1, 9].as_slice(),
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            assert!(Stored::decode(ragged).is_err() && Derived::decode(ragged).is_err());
        }
    }
}
