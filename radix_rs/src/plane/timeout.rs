//! How long a caller waits, as gRPC writes it.

use std::time::Duration;

use http::HeaderValue;

/// What a `grpc-timeout` header means; None if it means nothing.
pub(crate) fn parse(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| 10 * number + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(3600 * number),
        b'M' => Duration::from_secs(60 * number),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The header for what is left; at most 8 digits are allowed, so the unit follows from the length.
pub(crate) fn format(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = if left.as_micros() <= MOST {
        format!("{}u", left.as_micros())
    } else if left.as_millis() <= MOST {
        format!("{}m", left.as_millis())
    } else {
        format!("{}S", u128::from(left.as_secs()).min(MOST))
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("1H"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        for (text, nanos) in [
            ("1H", 3_600_000_000_000u64),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("4m", 4_000_000),
            ("5u", 5_000),
            ("6n", 6),
            ("99999999S", 99_999_999_000_000_000),
        ] {
            assert_eq!(
                parse(&HeaderValue::from_static(text)),
                Some(Duration::from_nanos(nanos))
            );
        }
    }

    #[test]
    fn what_is_no_timeout_is_none() {
        for text in ["", "S", "1", "1s", "-1S", "1.5S", "999999999S", "1 S"] {
            assert_eq!(parse(&HeaderValue::from_static(text)), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same_or_a_little_less() {
        for left in [
            Duration::ZERO,
            Duration::from_micros(1),
            Duration::from_secs(99),
            Duration::from_secs(1000),
            Duration::from_secs(200_000),
        ] {
            let back = parse(&format(left)).unwrap();
            assert!(
                back <= left && left < back + Duration::from_secs(1),
                "{left:?}"
            );
        }
    }
}
