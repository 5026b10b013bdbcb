//! The reasons that users see in conditions and events: one CamelCase word each, which alerts and scripts may rely on.
//!
//! What follows from a reason is decided on the value, in the engine. The word itself is for reading: nothing is decided by it.

/// The reasons that the worker itself gives, for every kind.
pub mod shared {
    /// A step of the plan failed; it is tried again.
    pub const CANNOT_CARRY_OUT: &str = "CannotCarryOut";
    /// An object of a name that is needed belongs to somebody else.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The API server refuses a pod for what it says.
    pub const POD_REFUSED: &str = "PodRefused";
}

/// Declares an engine's `Reason`s in groups: whoever adds one says whether it degrades the object.
#[macro_export]
macro_rules! reasons {
    ($($(#[doc = $group:literal])+ degrades: $degrades:literal { $($name:ident)+ })+) => {
        /// Why an object is as it is, or what is done with it.
        #[allow(missing_docs, reason = "each is the word that users see; the message beside it explains it")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            #[default]
            AsExpected,
            $($($name,)+)+
        }

        impl Reason {
            /// The word.
            pub fn as_str(self) -> &'static str {
                match self {
                    Self::AsExpected => "AsExpected",
                    $($(Self::$name => stringify!($name),)+)+
                }
            }

            /// The condition Degraded holds while the object waits for this.
            pub fn degrades(self) -> bool {
                match self {
                    Self::AsExpected => false,
                    $($(Self::$name)|+ => $degrades,)+
                }
            }
        }

        impl ::std::fmt::Display for Reason {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
