//! Enums that are stored as words: in annotations, in the status, in the outcome of an agent.

/// Declares an enum whose values are stored as their names.
#[macro_export]
macro_rules! stored_words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $value:ident,)+ }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            /// The word that is stored.
            $vis fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => stringify!($value),)+
                }
            }

            /// The value of a stored word.
            $vis fn parse(word: &str) -> Option<Self> {
                match word {
                    $(stringify!($value) => Some(Self::$value),)+
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// Declares an engine's `FailureReason`s, which its agents report. An agent of another version may report one that is not
/// known here: it is kept as it is.
#[macro_export]
macro_rules! failure_reasons {
    ($($value:ident)+) => {
        /// Why an agent failed.
        #[allow(missing_docs, reason = "each is the word that users see; the message beside it explains it")]
        #[derive(Clone, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum FailureReason {
            $($value,)+
            /// Of another version of the agent.
            Other(String),
        }

        impl FailureReason {
            /// The word that is stored.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$value => stringify!($value),)+
                    Self::Other(word) => word,
                }
            }
        }

        impl ::std::fmt::Display for FailureReason {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl From<String> for FailureReason {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $(stringify!($value) => Self::$value,)+
                    _ => Self::Other(word),
                }
            }
        }

        impl From<FailureReason> for String {
            fn from(reason: FailureReason) -> Self {
                reason.as_str().to_owned()
            }
        }
    };
}
